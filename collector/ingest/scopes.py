"""Steps and scopes of a launch: the annotations and modules around it."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from kernelcast.collector.traces.call_tree import CallTree
from kernelcast.collector.traces.events import ANNOTATION_CATEGORY, Event
from kernelcast.collector.traces.kineto import Trace

_STEP = re.compile(r"ProfilerStep#\d+|(?:train(?:ing)?[ _])?(?:step|iteration|iter)[ _#:]*\d+", re.IGNORECASE)
_PROFILERS_STEP = "ProfilerStep#"
_MODULE = "nn.Module: "
_COMMUNICATION = ("nccl:", "gloo:", "rccl:")
_SEPARATOR = " / "
_LONGEST = 400


def steps_of(trace: Trace) -> list[Event]:
    """Annotations of steps, by start; the profiler's own take precedence."""
    steps = [event for event in trace.of_category(ANNOTATION_CATEGORY) if _STEP.fullmatch(event.name)]
    profilers = [event for event in steps if event.name.startswith(_PROFILERS_STEP)]
    return profilers or steps


def marks_of(trace: Trace) -> tuple[Event, ...]:
    """The first event of a trace, where its clock starts, and all events that this module reads."""
    marks = (event for event in trace.events[1:] if event.category == ANNOTATION_CATEGORY or is_scope(event))
    return (*trace.events[:1], *marks)


class Steps:
    """Lookup of steps by time; where steps overlap, the later one counts."""

    def __init__(self, steps: Sequence[Event]) -> None:
        self._starts, self._ends = [s.start_us for s in steps], [s.end_us for s in steps]

    def at(self, time_us: float) -> int | None:
        """The step at a time."""
        index = bisect_right(self._starts, time_us) - 1
        return index if index >= 0 and time_us <= self._ends[index] else None


def scopes_of(trace: Trace, tree: CallTree) -> Sequence[str]:
    """Annotations and modules around every call, outermost first; a backward call without any has its forward's."""
    marks = [event for event in trace.events if is_scope(event)]
    if not marks:
        return [""] * len(tree.calls)
    found: list[str] = [""] * len(tree.calls)
    open_marks: dict[str, list[tuple[float, str]]] = {}
    # The sort is stable: a mark precedes the calls that start at the same time, and contains them.
    places: list[tuple[Event, int]] = [*((mark, -1) for mark in marks), *_numbered(tree.calls)]
    for event, index in sorted(places, key=lambda place: place[0].start_us):
        stack = open_marks.setdefault(event.thread, [])
        while stack and stack[-1][0] <= event.start_us:
            stack.pop()
        around = stack[-1][1] if stack else ""
        if index >= 0:
            found[index] = around
        else:
            name = event.name.removeprefix(_MODULE)
            stack.append((event.end_us, f"{around}{_SEPARATOR}{name}"[-_LONGEST:] if around else name))
    for index, node in enumerate(tree.backward_nodes):
        if not found[index] and node is not None:
            forward = tree.forward_of(node)
            found[index] = found[forward] if forward is not None else ""
    return found


def _numbered(calls: Sequence[Event]) -> Iterable[tuple[Event, int]]:
    return ((call, index) for index, call in enumerate(calls))


def is_scope(event: Event) -> bool:
    """Whether an event is an annotation or module of the program, neither a step nor a collective."""
    if event.category == "python_function":
        return event.name.startswith(_MODULE)
    return (
        event.category == ANNOTATION_CATEGORY
        and not _STEP.fullmatch(event.name)
        and not event.name.startswith(_COMMUNICATION)
    )
