"""Exposed and idle time of a device's events: every instant belongs to one running event.

Compute takes precedence over communication, communication over copies and fills, so the sums over all events are the
time of the device. `exposed` is the time that an event is charged with, `idle` the gap before it, and `late` the part
of the gap before its launch.
"""

import heapq
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class Span:
    """When an event ran, in ns; `rank` 0 takes precedence. The last three fields are results."""

    start_ns: int
    end_ns: int
    rank: int
    launch_ns: int | None = None
    exposed_ns: int = 0
    idle_ns: int = 0
    late_ns: int | None = None


def expose(spans: Iterable[Span]) -> Iterator[tuple[int, Span]]:
    """Yield index and results of each event of one device as it ends; events come by start. Time is O(n log n).

    Of concurrent events of one rank the one that started last counts, because calls of a CPU nest. Events that have
    ended are not held: a large trace has millions.
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
    """Charge running events with the time from `clock` to `until` at most; returns the time reached."""
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
