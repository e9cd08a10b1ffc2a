"""Which event every instant of a device belongs to, and what the device was idle for."""

import heapq
from collections.abc import Sequence

import numpy as np

from kernelcast.collector.traces.events import NO_ID, Integers


def expose(
    start_ns: Integers, end_ns: Integers, ranks: Integers, launch_ns: Integers
) -> tuple[Integers, Integers, Integers]:
    """Exposed, idle and late time of each event of one device, ns; events come by start, rank 0 takes precedence.

    Of concurrent events of one rank the one that started last counts, because calls of a CPU nest. Launch and late time
    are `NO_ID` where not known. Time is O(n log n).
    """
    busy_until = np.append(start_ns[:1], np.maximum.accumulate(end_ns)[:-1])
    idle_ns = np.maximum(start_ns - busy_until, 0)
    known_ns = np.where(launch_ns == NO_ID, 0, launch_ns)
    late_ns = np.where(launch_ns == NO_ID, NO_ID, np.clip(known_ns - busy_until, 0, idle_ns))
    # An event that overlaps with none has all of its time.
    exposed_ns = end_ns - start_ns
    begins = start_ns >= busy_until
    shared = np.flatnonzero(~(begins & np.append(begins[1:], True)))
    exposed_ns[shared] = _divided(*(column[shared].tolist() for column in (start_ns, end_ns, ranks)))
    return exposed_ns, idle_ns, late_ns


def _divided(start_ns: Sequence[int], end_ns: Sequence[int], ranks: Sequence[int]) -> list[int]:
    """Exposed time of events that overlap with others."""
    running: list[tuple[int, int, int]] = []  # rank, latest start first, latest event first
    exposed_ns = [0] * len(start_ns)
    clock = start_ns[0] if start_ns else 0
    for place, (start, rank) in enumerate(zip(start_ns, ranks, strict=True)):
        if running:
            clock = _run(running, clock, start, end_ns, exposed_ns)
        clock = max(clock, start)
        heapq.heappush(running, (rank, -start, -place))
    _run(running, clock, max(end_ns, default=clock), end_ns, exposed_ns)
    return exposed_ns


def _run(
    running: list[tuple[int, int, int]], clock: int, until: int, end_ns: Sequence[int], exposed_ns: list[int]
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
