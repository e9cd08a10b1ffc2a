"""Calls of the host, summed by step and name: top-level operators, annotations, calls of the device's runtime."""

from collections.abc import Iterator

from kernelcast.collector.ingest.scopes import Steps, is_scope, steps_of
from kernelcast.collector.traces.call_tree import CallTree
from kernelcast.collector.traces.events import ANNOTATION_CATEGORY, LAUNCH_CATEGORIES, Event
from kernelcast.collector.traces.kineto import Trace
from kernelcast.store.runs import HostTime


def host_times(trace: Trace, tree: CallTree) -> Iterator[HostTime]:
    """The sums, by step, kind and name."""
    steps = Steps(steps_of(trace))
    sums: dict[tuple[int | None, str, str], list[float]] = {}
    for kind, event in _calls(trace, tree):
        found = sums.setdefault((steps.at(event.start_us), kind, event.name), [0, 0.0, 0.0])
        found[0] += 1
        found[1] += event.duration_us
        found[2] = max(found[2], event.duration_us)
    for key, (calls, total_us, longest_us) in sums.items():
        yield HostTime(*key, int(calls), round(total_us * 1e3), round(longest_us * 1e3))


def _calls(trace: Trace, tree: CallTree) -> Iterator[tuple[str, Event]]:
    yield from (
        ("operator", call) for call, parent in zip(tree.calls, tree.parents, strict=True) if parent is None
    )
    for event in trace.events:
        if event.category in LAUNCH_CATEGORIES:
            yield "runtime", event
        elif event.category == ANNOTATION_CATEGORY and is_scope(event):
            yield "annotation", event
