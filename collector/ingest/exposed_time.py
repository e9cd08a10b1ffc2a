"""Every instant of a device belongs to one event: what runs, with compute before communication before copies and fills.

The sums over all events are then the time of the device, once: `exposed` is when an event alone explains that the
device is busy, `idle` is when nothing ran before it, and `late` the part of that in which it was not even launched.
"""

import heapq
from collections.abc import Generator, Iterable, Iterator
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


def expose(spans: Iterable[Span]) -> Iterator[tuple[int, Span]]:
    """The events of one device, given by start: the place of each and its results, as they are over; time is n log n.

    Of events of one rank that run at the same time the one that started last counts: calls of a CPU nest. No event is
    held once it is over: a large trace has millions.
    """
    running: list[tuple[int, int, int, Span]] = []  # rank, latest start first
    clock: int | None = None
    end_ns = 0
    for place, span in enumerate(spans):
        clock = span.start_ns if clock is None else (yield from _run(running, clock, span.start_ns))
        span.idle_ns = max(span.start_ns - clock, 0)
        if span.launch_ns is not None:
            span.late_ns = min(max(span.launch_ns - clock, 0), span.idle_ns)
        clock = max(clock, span.start_ns)
        end_ns = max(end_ns, span.end_ns) if place else span.end_ns
        heapq.heappush(running, (span.rank, -span.start_ns, -place, span))
    if clock is not None:
        yield from _run(running, clock, end_ns)
    yield from ((-place, span) for _, _, place, span in running)


def _run(
    running: list[tuple[int, int, int, Span]], clock: int, until: int
) -> Generator[tuple[int, Span], None, int]:
    """Give the time from `clock` on to what runs, at most `until`; answers the moment that was reached."""
    while running and clock < until:
        _, _, place, span = running[0]
        end_ns = min(span.end_ns, until)
        if end_ns > clock:
            span.exposed_ns += end_ns - clock
            clock = end_ns
        if span.end_ns <= clock:
            heapq.heappop(running)
            yield -place, span
    return clock
