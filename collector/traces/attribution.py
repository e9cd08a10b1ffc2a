"""Which kernels belong to which annotated piece of work, and how long that piece took on the device.

A *mark* is a profiler annotation that the harness puts around one call. On a GPU the kernels of a mark are those whose
launch, found through the correlation id, happened under the mark: they may run long after it. On a CPU the operators
themselves are the work; a kernel is an operator event with at least 1 µs of time of its own, and where a mark has none,
the operator with most.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelcast.collector.traces.kineto import (
    ANNOTATION_CATEGORY,
    DEVICE_CATEGORIES,
    HOST_OPERATOR_CATEGORY,
    LAUNCH_CATEGORIES,
    RESOLUTION_US,
    Event,
    Trace,
)

GLOO_PREFIX = "gloo:"


@dataclass(frozen=True, slots=True)
class Work:
    """One marked call: its kernels, and the span from their earliest start to their latest end (µs, trace's clock)."""

    mark: str
    start_us: float
    end_us: float
    kernels: tuple[Event, ...]

    @property
    def time_us(self) -> float:
        """docs/method.md, Measuring: from the earliest start to the latest end of all kernels of the operator."""
        return self.end_us - self.start_us


def attribute(trace: Trace, prefix: str) -> list[Work]:
    """The work under every annotation whose name starts with `prefix`, in order of time.

    A mark without any kernel is left out: there was nothing to do (or nothing was recorded).
    """
    marks = [e for e in trace.of_category(ANNOTATION_CATEGORY) if e.name.startswith(prefix)]
    device_kernels = trace.of_category(*DEVICE_CATEGORIES)
    work = _device_work(trace, marks, device_kernels) if device_kernels else _host_work(trace, marks)
    return [item for item in work if item.kernels]


def _host_work(trace: Trace, marks: Sequence[Event]) -> Iterable[Work]:
    # Gloo runs its collectives on threads of its own and records them as annotations.
    operators = [
        event
        for event in trace.events
        if event.category == HOST_OPERATOR_CATEGORY
        or (event.category == ANNOTATION_CATEGORY and event.name.startswith(GLOO_PREFIX))
    ]
    starts = [event.start_us for event in operators]
    for mark in marks:
        inside = operators[bisect_left(starts, mark.start_us) : bisect_right(starts, mark.end_us)]
        if not inside:
            continue
        own = [event.lasting(own_us) for event, own_us in self_times_us(inside)]
        kernels = [e for e in own if e.duration_us >= RESOLUTION_US]
        # A call shorter than the resolution ran all the same: it is its longest operator.
        kernels = kernels or [max(own, key=lambda e: e.duration_us)]
        # The span is that of the operators as called, so that it includes their dispatch, as a real step does.
        yield Work(mark.name, inside[0].start_us, max(e.end_us for e in inside), tuple(kernels))


def self_times_us(events: Sequence[Event]) -> list[tuple[Event, float]]:
    """Each event with its time less that of the events nested in it on the same thread; events come by start time."""
    own = [event.duration_us for event in events]
    open_events: dict[str, list[int]] = {}
    for index, event in enumerate(events):
        stack = open_events.setdefault(event.thread, [])
        while stack and events[stack[-1]].end_us <= event.start_us:
            stack.pop()
        if stack:
            own[stack[-1]] -= event.duration_us
        stack.append(index)
    return list(zip(events, own, strict=True))


def _correlation(event: Event) -> int | None:
    """What ties a kernel to the call that launched it."""
    value = event.args.get("correlation")
    return value if type(value) is int else None


def _device_work(trace: Trace, marks: Sequence[Event], kernels: Sequence[Event]) -> Iterable[Work]:
    launches = {
        _correlation(event): event
        for event in trace.of_category(*LAUNCH_CATEGORIES)
        if _correlation(event) is not None
    }
    mark_starts = [mark.start_us for mark in marks]
    by_mark: dict[int, list[Event]] = {}
    for kernel in kernels:
        launch = launches.get(_correlation(kernel))
        if launch is None:
            continue
        # Backward launches come from autograd's own thread, so the mark is found by time, not by thread.
        index = bisect_right(mark_starts, launch.start_us) - 1
        if index >= 0 and launch.start_us <= marks[index].end_us:
            by_mark.setdefault(index, []).append(kernel)
    for index, own in sorted(by_mark.items()):
        yield Work(
            marks[index].name,
            min(event.start_us for event in own),
            max(event.end_us for event in own),
            tuple(sorted(own, key=lambda event: event.start_us)),
        )
