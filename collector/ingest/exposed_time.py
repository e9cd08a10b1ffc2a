"""Which event every instant of a device belongs to, and what the device was idle for."""

import heapq
from collections.abc import Sequence

Times = Sequence[int]


def expose(
    start_ns: Times, end_ns: Times, ranks: Times, launch_ns: Sequence[int | None]
) -> tuple[list[int], list[int], list[int | None]]:
    """Exposed, idle and late time of each event of one device, ns; events come by start, rank 0 takes precedence.

    Of concurrent events of one rank the one that started last counts, because calls of a CPU nest. Time is O(n log n).
    """
    running: list[tuple[int, int, int]] = []  # rank, latest start first, latest event first
    exposed_ns = [0] * len(start_ns)
    idle_ns: list[int] = []
    late_ns: list[int | None] = []
    clock = start_ns[0] if start_ns else 0
    for place, (start, rank, launch) in enumerate(zip(start_ns, ranks, launch_ns, strict=True)):
        if running:
            clock = _run(running, clock, start, end_ns, exposed_ns)
        idle = max(start - clock, 0)
        idle_ns.append(idle)
        late_ns.append(None if launch is None else min(max(launch - clock, 0), idle))
        clock = max(clock, start)
        heapq.heappush(running, (rank, -start, -place))
    _run(running, clock, max(end_ns, default=clock), end_ns, exposed_ns)
    return exposed_ns, idle_ns, late_ns


def _run(
    running: list[tuple[int, int, int]], clock: int, until: int, end_ns: Times, exposed_ns: list[int]
) -> int:
    """Charge running events with the time from `clock` to `until` at most; returns the time reached."""
    while running and clock < until:
        place = -running[0][2]
        end = end_ns[place]
        if min(end, until) > clock:
            exposed_ns[place] += min(end, until) - clock
            clock = min(end, until)
        if end <= clock:
            heapq.heappop(running)
    return clock
