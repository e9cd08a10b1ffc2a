"""Every instant of a device belongs to one event: what runs, with compute before communication before copies and fills.

The sums over all events are then the time of the device, once: `exposed` is when an event alone explains that the
device is busy, `idle` is when nothing ran before it, and `late` the part of that in which it was not even launched.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Span:
    """When an event ran, in ns; `rank` is 0 for what counts first. The results are filled in."""

    start_ns: int
    end_ns: int
    rank: int
    launch_ns: int | None = None
    exposed_ns: int = 0
    idle_ns: int = 0
    late_ns: int | None = None


def expose(spans: Sequence[Span]) -> None:
    """Fill in the results for the events of one device, given by start; time is n log n.

    Of events of one rank that run at the same time the one that started last counts: calls of a CPU nest.
    """
    running: list[tuple[int, int, int, Span]] = []  # rank, latest start first
    clock = spans[0].start_ns if spans else 0
    for number, span in enumerate(spans):
        clock = _run(running, clock, span.start_ns)
        span.idle_ns = max(span.start_ns - clock, 0)
        if span.launch_ns is not None:
            span.late_ns = min(max(span.launch_ns - clock, 0), span.idle_ns)
        clock = max(clock, span.start_ns)
        heapq.heappush(running, (span.rank, -span.start_ns, -number, span))
    _run(running, clock, max((span.end_ns for span in spans), default=0))


def _run(running: list[tuple[int, int, int, Span]], clock: int, until: int) -> int:
    """Give the time from `clock` on to what runs, at most `until`; answers the moment that was reached."""
    while running and clock < until:
        span = running[0][-1]
        end_ns = min(span.end_ns, until)
        if end_ns > clock:
            span.exposed_ns += end_ns - clock
            clock = end_ns
        if span.end_ns <= clock:
            heapq.heappop(running)
    return clock
