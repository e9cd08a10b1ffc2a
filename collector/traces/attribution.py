"""The kernels under each mark of the collector, and their time on the device.

A *mark* is a profiler annotation that the harness puts around one call. On a GPU a mark's kernels were launched under
it, and may run long after it. On a CPU a kernel is an operator with a self time of at least 1 µs, or the operator with
the longest self time if a mark has none of these.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelcast.collector.traces.call_tree import CallTree
from kernelcast.collector.traces.events import ANNOTATION_CATEGORY, DEVICE_CATEGORIES, Event, Events
from kernelcast.collector.traces.kineto import RESOLUTION_US, Trace

_GLOO = "gloo:"


@dataclass(frozen=True, slots=True)
class Work:
    """One marked call: its kernels, and the span from their earliest start to their latest end (µs, trace's clock)."""

    mark: str
    start_us: float
    end_us: float
    kernels: tuple[Event, ...]

    @property
    def time_us(self) -> float:
        """From the earliest start to the latest end of the operator's kernels (docs/method.md, Measuring)."""
        return self.end_us - self.start_us


def attribute(trace: Trace, prefix: str) -> list[Work]:
    """The work under every annotation whose name starts with `prefix` and that has kernels, in order of time."""
    marks = [e for e in trace.of_category(ANNOTATION_CATEGORY) if e.name.startswith(prefix)]
    device_kernels = trace.of_category(*DEVICE_CATEGORIES)
    return list(_device_work(trace, marks, device_kernels) if device_kernels else _host_work(trace, marks))


def _host_work(trace: Trace, marks: Sequence[Event]) -> Iterable[Work]:
    # Gloo runs its collectives on its own threads and records them as annotations.
    tree = CallTree(trace, annotations=(_GLOO,))
    starts = tree.calls.start_us
    for mark in marks:
        first, end = bisect_left(starts, mark.start_us), bisect_right(starts, mark.end_us)
        inside = list(tree.calls[first:end])
        if not inside:
            continue
        own_us = tree.self_times_us[first:end]
        own = [event._replace(duration_us=us) for event, us in zip(inside, own_us, strict=True)]
        kernels = [e for e in own if e.duration_us >= RESOLUTION_US]
        # A call shorter than the resolution counts as its longest operator.
        kernels = kernels or [max(own, key=lambda e: e.duration_us)]
        # The span covers the operators as called and so includes their dispatch, as in a real step.
        yield Work(mark.name, inside[0].start_us, max(e.end_us for e in inside), tuple(kernels))


def _device_work(trace: Trace, marks: Sequence[Event], kernels: Events) -> Iterable[Work]:
    tree = CallTree(trace)
    mark_starts = [mark.start_us for mark in marks]
    by_mark: dict[int, list[Event]] = defaultdict(list)
    for kernel, number in zip(kernels, tree.launch_of(kernels).tolist(), strict=True):
        if number < 0:
            continue
        launch_us = float(tree.launches.start_us[number])
        # Backward launches come from autograd's thread, so the mark is found by time, not by thread.
        index = bisect_right(mark_starts, launch_us) - 1
        if index >= 0 and launch_us <= marks[index].end_us:
            by_mark[index].append(kernel)
    for index, own in sorted(by_mark.items()):
        # Kernels are ordered by start time, like all events of a trace.
        yield Work(marks[index].name, own[0].start_us, max(event.end_us for event in own), tuple(own))
