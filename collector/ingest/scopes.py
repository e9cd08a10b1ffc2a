"""Steps and scopes of a launch: the annotations and modules around it."""

import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from kernelcast.collector.traces.call_tree import CallTree
from kernelcast.collector.traces.events import (
    ANNOTATION_CATEGORY,
    NO_ID,
    PROFILERS_STEP,
    Events,
    Floats,
    Integers,
)
from kernelcast.collector.traces.kineto import Trace

_STEP = re.compile(
    r"(?:ProfilerStep#\d+|(?:train(?:ing)?[ _])?(?:step|iteration|iter)[ _#:]*\d+|repetition \d+)(?: \(cut\))?",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+")
_DIGITS = 15  # of a number that fits into 64 bits
_MODULE = "nn.Module: "
_COMMUNICATION = ("nccl:", "gloo:", "rccl:")
_SEPARATOR = " / "
_LONGEST = 400


def steps_of(trace: Trace) -> Events:
    """Annotations of steps, by start; the profiler's own take precedence."""
    steps = trace.events[
        trace.events.where(
            lambda category, name: category == ANNOTATION_CATEGORY and _STEP.fullmatch(name) is not None
        )
    ]
    profilers = steps.where(lambda _, name: name.startswith(PROFILERS_STEP))
    return steps[profilers] if profilers.any() else steps


def begins_after_pauses(steps: Events, launched_us: Floats) -> Floats:
    """Begins, µs, of steps whose number does not follow, with nothing launched between them and the one before.

    The profiler counts every step. Other marks may count by tens, and from the start again in the next epoch.
    """
    names = steps.named()
    apart = np.diff([int(_NUMBER.findall(name)[-1][-_DIGITS:]) for name in names])
    if all(name.startswith(PROFILERS_STEP) for name in names):
        is_next = np.isin(apart, (0, 1))
    else:
        is_next = apart <= min(apart[apart > 0], default=0)
    launched_us = np.sort(launched_us)
    gaps = steps.end_us[:-1], steps.start_us[1:]
    is_next |= np.subtract(*(np.searchsorted(launched_us, one) for one in gaps)) < 0  # a mark is missing
    return steps.start_us[1:][~is_next]


def marks_of(trace: Trace, *categories: str) -> Events:
    """The first event of a trace (its clock's start), events of `categories`, annotations and scopes."""
    is_mark = trace.events.where(
        lambda category, name: category == ANNOTATION_CATEGORY or is_scope(category, name)
    )
    is_mark[:1] = True
    is_mark |= trace.events.are(*categories)
    return trace.events[is_mark]


class Steps:
    """Lookup of steps by time; where steps overlap, the later one counts."""

    def __init__(self, steps: Events) -> None:
        self._starts, self._ends = steps.start_us, steps.end_us

    def at(self, time_us: Floats) -> Integers:
        """The step at each time; `NO_ID` for none."""
        index = np.searchsorted(self._starts, time_us, side="right") - 1
        if not len(self._starts):
            return np.full(len(time_us), NO_ID)
        return np.where((index >= 0) & (time_us <= self._ends[index]), index, NO_ID)


def scopes_of(trace: Trace, tree: CallTree) -> Sequence[str]:
    """Annotations and modules around every call, outermost first; a backward call without any has its forward's."""
    marks = trace.events[trace.events.where(is_scope)]
    found: list[str] = [""] * len(tree.calls)
    if not len(marks):
        return found
    open_marks: dict[str, list[tuple[float, str]]] = defaultdict(list)
    threads, names, ends_us = [*marks.threads(), *tree.threads], marks.named(), marks.end_us.tolist()
    # The sort is stable: a mark precedes the calls that start at the same time, and contains them.
    starts_us = np.concatenate([marks.start_us, tree.calls.start_us])
    order = np.argsort(starts_us, kind="stable")
    for index, start_us in zip(order.tolist(), starts_us[order].tolist(), strict=True):
        stack = open_marks[threads[index]]
        while stack and stack[-1][0] <= start_us:
            stack.pop()
        around = stack[-1][1] if stack else ""
        if index >= len(marks):
            found[index - len(marks)] = around
        else:
            name = names[index].removeprefix(_MODULE)
            stack.append((ends_us[index], f"{around}{_SEPARATOR}{name}"[-_LONGEST:] if around else name))
    for index, node in enumerate(tree.backward_nodes):
        if not found[index] and node is not None:
            forward = tree.forward_of(node)
            found[index] = found[forward] if forward is not None else ""
    return found


def is_scope(category: str, name: str) -> bool:
    """Whether an event is an annotation or module of the program, neither a step nor a collective."""
    if category == "python_function":
        return name.startswith(_MODULE)
    return (
        category == ANNOTATION_CATEGORY and not _STEP.fullmatch(name) and not name.startswith(_COMMUNICATION)
    )
