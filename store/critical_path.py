"""The longest chain of a step over host, streams and ranks, and what the step would gain if a part took half as long.

An event starts when the last of these is done: its launch, the event before it on its stream, or the event of another
stream that it waits for: the one that ended last where no waits between streams were recorded. The host launches one
after another. It waited for an event that ended between two launches if that is a copy to pageable memory, or if a call
that can wait is recorded and fits into that time. A collective that several ranks ran transfers from the last arrival
on. Observed delays stay as they are.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Part = tuple[str, str]
"""Class (compute, communication, memory, host or delay) and name."""
FIRST = ("host", "before the first launch")
DELAY = ("delay", "before a start")
NOTHING, NOT_RECORDED = -1, -2
"""For an event of another stream: none is awaited, or waits between streams were not recorded."""
_NEAR_NS = 5_000  # between two kernels of a stream with nothing to wait for
_AFTER_NS = 50_000  # a call that waited returns
_SHARE = 0.8  # of the time from the last launch to the end of what is waited for
_AT_ONCE = 20_000

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]


class PathEvents(NamedTuple):
    """Events of a step by start, then end, as columns [events]; times in ns on the clock of the run.

    Events of the step before are not `is_own`: they are fixed. Parts and launchers (what the host does until a launch)
    are positions in a list of parts.
    """

    rank: Rows
    stream: Rows  # of any rank
    start_ns: Floats
    end_ns: Floats
    launch_ns: Floats  # NaN where it is not known
    part: Rows
    collective: Rows  # that several ranks ran; -1 for none
    is_own: Mask
    blocks: Mask  # the host, until its end
    launcher: Rows
    awaited: Rows  # event of another stream, `NOTHING` or `NOT_RECORDED`


class PathPart(NamedTuple):
    """A part of the longest chain: its time there, and what the step gains if all its events take half as long, ns."""

    part: Part
    path_ns: float
    saved_ns: float
    share: float  # of the chain


class _Edges(NamedTuple):
    """What nodes wait for, as columns: the first edge of a node is the one that it waited for.

    A node comes `delay_ns` of a part (-1: of none) after its source, or after the end of the event `tail`, if that is
    not -1, whose transfer begins at the source. Without a source (-1) it comes that long after `fixed_ns`.
    """

    target: Rows
    source: Rows
    fixed_ns: Floats
    delay_ns: Floats
    part: Rows
    tail: Rows


class _Graph:
    """Launch and start of every event (nodes i, n + i), and the last arrival at every collective (2 n + …)."""

    def __init__(
        self, events: PathEvents, parts: Sequence[Part], calls_ns: Mapping[int, Iterable[float]],
        begin_ns: Mapping[int, float],
    ) -> None:  # fmt: skip
        self._events, self._count = events, len(events.rank)
        self._delay, self._first = parts.index(DELAY), parts.index(FIRST)
        self._found: list[_Edges] = []
        arrivals, lasts = self._meetings()
        nodes = np.arange(self._count)
        # An event transfers from its start on, in a collective from the last arrival on.
        self.base, transfer = self._count + nodes, events.end_ns - events.start_ns
        is_met = arrivals >= 0
        self.base[is_met] = 2 * self._count + arrivals[is_met]
        transfer[is_met] = (events.end_ns - events.start_ns[lasts[arrivals]])[is_met] if len(lasts) else 0.0
        self.transfer_ns = transfer
        launch_ns = np.where(np.isnan(events.launch_ns), events.start_ns, events.launch_ns)
        self.times_ns = np.concatenate([launch_ns, events.start_ns, events.start_ns[lasts]])
        self._is_own = np.concatenate([events.is_own, events.is_own, np.ones(len(lasts), dtype=bool)])
        for last in (True, False):  # the last arrival first
            rows = np.flatnonzero(is_met & ((lasts[arrivals] == nodes) == last)) if len(lasts) else nodes[:0]
            self._add(self.base[rows], self._count + rows, 0.0, -1)
        for rank in np.unique(events.rank).tolist():
            own = np.flatnonzero(events.rank == rank)
            self._add_launches(own, list(calls_ns.get(rank, ())), begin_ns.get(rank, -inf))
        self._add_starts()
        # An order in which nodes follow what they wait for.
        kinds = np.repeat([0, 1, 2], [self._count, self._count, len(lasts)])
        place = np.empty(len(kinds), dtype=np.intp)
        place[np.lexsort((kinds, np.concatenate([nodes, nodes, lasts]), self.times_ns))] = np.arange(
            len(kinds)
        )
        edges = _Edges._make(map(np.concatenate, zip(*self._found, strict=True)))
        rows = np.argsort(place[edges.target], kind="stable")
        self.edges = _Edges._make(column[rows] for column in edges)

    def _add(
        self, target: Rows, source: Rows, delay_ns: Floats | float, part: Rows | int, *, ends: Rows | None = None,
        fixed_ns: Floats | float = 0.0,
    ) -> None:  # fmt: skip
        """Edges from nodes, or from the ends of events `ends`. Fixed nodes have none."""
        tail = np.full(len(target), -1)
        fixed = np.broadcast_to(np.asarray(fixed_ns, dtype=np.float64), target.shape).copy()
        if ends is not None:
            is_own = self._events.is_own[ends]
            source, tail = np.where(is_own, self.base[ends], -1), np.where(is_own, ends, -1)
            fixed[~is_own] = self._events.end_ns[ends[~is_own]]
        else:
            is_fixed = (source >= 0) & ~self._is_own[source]
            fixed[is_fixed] = self.times_ns[source[is_fixed]]
            source = np.where(is_fixed, -1, source)
        columns = target, source, fixed, delay_ns, part, tail
        is_own = self._is_own[target]
        self._found.append(_Edges._make(np.broadcast_to(column, target.shape)[is_own] for column in columns))

    def _meetings(self) -> tuple[Rows, Rows]:
        """The number of the collective of every event, -1 for none, and the event that arrives last at each.

        All ranks are in a collective at the same time; otherwise their clocks are too far apart.
        """
        events = self._events
        found, lasts = np.full(self._count, -1), list[int]()
        rows = np.flatnonzero(events.collective >= 0)
        rows = rows[np.argsort(events.collective[rows], kind="stable")]
        borders = np.flatnonzero(np.diff(events.collective[rows])) + 1
        for group in np.split(rows, borders) if len(rows) else ():
            if len(group) > 1 and events.start_ns[group].max() < events.end_ns[group].min():
                found[group] = len(lasts)
                lasts.append(int(group[-1]))
        return found, np.array(lasts, dtype=np.intp)

    def _add_starts(self) -> None:
        """What each event waits for."""
        events, nodes = self._events, np.arange(self._count)
        previous, other = self._before()
        is_awaited = (events.awaited >= 0) & (events.end_ns[np.maximum(events.awaited, 0)] <= events.start_ns)
        other = np.where(events.awaited == NOT_RECORDED, other, np.where(is_awaited, events.awaited, NOTHING))
        launch_ns = np.where(np.isnan(events.launch_ns), -inf, events.launch_ns)
        ended_ns = np.where(previous < 0, -inf, events.end_ns[previous])
        other_ns = np.where(other < 0, -inf, events.end_ns[other])
        is_next = (ended_ns > launch_ns) & (events.start_ns - ended_ns <= _NEAR_NS)
        is_next &= ~is_awaited | (ended_ns >= other_ns)
        is_after_other = ~is_next & (other_ns > np.maximum(launch_ns, ended_ns))
        is_bound = is_next | (~is_after_other & (ended_ns > launch_ns))
        has_launch = launch_ns > -inf
        is_launched = has_launch & ~is_bound & ~is_after_other
        rows = np.flatnonzero(is_after_other)
        self._add_waits(rows, other[rows], events.start_ns[rows] - other_ns[rows], self._delay)
        rows = np.flatnonzero(is_launched)
        self._add(self._count + rows, rows, events.start_ns[rows] - launch_ns[rows], self._delay)
        is_running = ended_ns > events.start_ns  # it starts a while after the start of the event before
        rows = np.flatnonzero(is_running)
        before = previous[rows]
        since_ns = events.start_ns[rows] - events.start_ns[before]
        self._add(self._count + rows, self._count + before, since_ns, events.part[before])
        rows = np.flatnonzero(~is_running & (previous >= 0))
        gap_ns = np.where(is_bound[rows], events.start_ns[rows] - ended_ns[rows], 0.0)
        self._add_waits(rows, previous[rows], gap_ns, np.where(is_bound[rows], self._delay, -1))
        rows = np.flatnonzero(is_awaited & ~is_after_other)
        self._add_waits(rows, other[rows], np.zeros(len(rows)), -1)
        least_ns = self._least_delays(np.where(has_launch, events.start_ns - launch_ns, inf))
        rows = nodes[has_launch & ~is_launched]
        self._add(self._count + rows, rows, least_ns[rows], -1)

    def _add_waits(self, rows: Rows, ends: Rows, delay_ns: Floats, part: Rows | int) -> None:
        self._add(self._count + rows, rows, delay_ns, part, ends=ends)

    def _least_delays(self, delays_ns: Floats) -> Floats:
        """The shortest delay from a launch to a start of every event's rank."""
        _, rank = np.unique(self._events.rank, return_inverse=True)
        least_ns = np.full(rank.max(initial=-1) + 1, inf)
        np.minimum.at(least_ns, rank, delays_ns)
        return np.maximum(least_ns, 0.0)[rank]

    def _before(self) -> tuple[Rows, Rows]:
        """For every event the one before it on its stream, and the one of its rank that ended last; -1 for none."""
        events, nodes = self._events, np.arange(self._count)
        order = np.lexsort((nodes, events.stream, events.rank))
        is_same = (np.diff(events.rank[order]) == 0) & (np.diff(events.stream[order]) == 0)
        previous = np.full(self._count, -1)
        previous[order[1:][is_same]] = order[:-1][is_same]
        # Starts among ends: an event that took no time has not ended before itself.
        both = np.concatenate([nodes, nodes])
        time_ns = np.concatenate([events.start_ns, events.end_ns])
        is_end = np.repeat([False, True], self._count)
        order = np.lexsort((is_end, both, time_ns, events.rank[both]))
        last = np.maximum.accumulate(np.where(is_end[order], np.arange(len(order)), -1))
        ended = np.where(last < 0, -1, both[order[last]])
        ended[(ended >= 0) & (events.rank[ended] != events.rank[both[order]])] = -1
        other = np.empty(self._count, dtype=np.intp)
        other[both[order[~is_end[order]]]] = ended[~is_end[order]]
        return previous, other

    def _add_launches(self, own: Rows, calls_ns: list[float], begin_ns: float) -> None:
        """The launch before each launch of a rank, and the event that the host waited for in between."""
        events = self._events
        has_launch = ~np.isnan(events.launch_ns[own])
        # Launched before the recording: the host may wait for them before its first launch.
        early = own[~has_launch & ~events.is_own[own]]
        own = own[has_launch]
        own = own[np.lexsort((own, events.launch_ns[own]))]
        if not len(own):
            return
        launch_ns, end_ns = events.launch_ns[own], events.end_ns[own]
        before, before_ns = np.append(-1, own[:-1]), np.append(begin_ns, launch_ns[:-1])
        latest_ns = np.maximum.accumulate(end_ns)
        is_longer = np.append(True, latest_ns[1:] > latest_ns[:-1])
        longest = np.append(-1, own[np.maximum.accumulate(np.where(is_longer, np.arange(len(own)), 0))][:-1])
        if len(early):
            longest[0] = early[np.argmax(events.end_ns[early])]
        waited = self._waited(before_ns, launch_ns, (before, longest), calls_ns)
        is_first = (before < 0) | ~events.is_own[before]
        from_ns = np.where(is_first, np.maximum(before_ns, begin_ns), before_ns)
        part = np.where(is_first, self._first, events.launcher[own])
        rows = np.flatnonzero(waited >= 0)
        from_ns[rows] = events.end_ns[waited[rows]]
        self._add(own[rows], own[rows], launch_ns[rows] - from_ns[rows], part[rows], ends=waited[rows])
        rows = np.flatnonzero(~is_first)
        self._add(own[rows], before[rows], launch_ns[rows] - from_ns[rows], part[rows])
        rows = np.flatnonzero(is_first & (waited < 0) & (from_ns > -inf) & (from_ns <= launch_ns))
        nowhere = np.full(len(rows), -1)
        self._add(own[rows], nowhere, launch_ns[rows] - from_ns[rows], part[rows], fixed_ns=from_ns[rows])

    def _waited(
        self, before_ns: Floats, launch_ns: Floats, candidates: tuple[Rows, ...], calls_ns: list[float]
    ) -> Rows:
        """The event that the host waited for before each launch, -1 for none; takes the calls that did from `calls_ns`.

        The first candidate counts that ended between two launches and blocks the host, or whose wait fits a call.
        """
        events, left_ns = self._events, np.array(calls_ns, dtype=np.float64)
        waited, known_ns = np.full(len(launch_ns), -1), np.sort(left_ns)
        wait_ns = [events.end_ns[one] - before_ns for one in candidates]
        possible = [
            (one >= 0) & (before_ns < events.end_ns[one]) & (events.end_ns[one] <= launch_ns)
            & ((np.searchsorted(known_ns, _SHARE * wait) < np.searchsorted(known_ns, wait + _AFTER_NS, "right"))
                | (events.blocks[one] & (events.launch_ns[one] == before_ns)))
            for one, wait in zip(candidates, wait_ns, strict=True)
        ]  # fmt: skip
        for row in np.flatnonzero(np.logical_or.reduce(possible)).tolist():
            for one, wait, is_possible in zip(candidates, wait_ns, possible, strict=True):
                if not is_possible[row]:
                    continue
                fitting = np.flatnonzero((_SHARE * wait[row] <= left_ns) & (left_ns <= wait[row] + _AFTER_NS))
                left_ns = np.delete(left_ns, fitting[:1])
                event = one[row]
                if len(fitting) or (events.blocks[event] and events.launch_ns[event] == before_ns[row]):
                    waited[row] = event
                    break
        return waited

    def path_ns(self) -> Mapping[int, float]:
        """The time of each part on the longest chain, backwards from the last event."""
        found = defaultdict[int, float](float)
        events, edges = self._events, self.edges
        own = np.flatnonzero(events.is_own)
        if not len(own):
            return found
        first = np.full(len(self.times_ns), -1)
        first[edges.target[::-1]] = np.arange(len(edges.target))[::-1]
        tail = int(own[np.argmax(events.end_ns[own])])
        node = int(self.base[tail])
        found[int(events.part[tail])] += float(self.transfer_ns[tail])
        while node >= 0 and (edge := int(first[node])) >= 0:
            if (part := int(edges.part[edge])) >= 0:
                found[part] += float(edges.delay_ns[edge])
            if (tail := int(edges.tail[edge])) >= 0:
                found[int(events.part[tail])] += float(self.transfer_ns[tail])
            node = int(edges.source[edge])
        return found

    def saved_ns(self, chosen: Sequence[int], count: int) -> list[float]:
        """Time saved by halving each of the chosen parts alone, out of `count` parts."""
        events = self._events
        own = np.flatnonzero(events.is_own)
        if not len(own):
            return []
        # A row for each part, and one for none; a column for each part that is halved, and one as it was.
        shares = np.ones((count + 1, len(chosen) + 1))
        shares[list(chosen), np.arange(len(chosen))] = 0.5
        # Own nodes alone have times that change; row 0 is time 0 for what is fixed.
        row = np.where(self._is_own, np.cumsum(self._is_own), 0)
        times_ns = np.zeros((int(row.max()) + 1, len(chosen) + 1))
        times_ns[row[self._is_own]] = self.times_ns[self._is_own, None]
        self._run(times_ns, row, shares)
        ends_ns = np.full(len(chosen) + 1, -inf)
        for begin in range(0, len(own), _AT_ONCE):
            some_own = own[begin : begin + _AT_ONCE]
            durations_ns = self.transfer_ns[some_own, None] * shares[events.part[some_own]]
            ends_ns = np.maximum(ends_ns, (times_ns[row[self.base[some_own]]] + durations_ns).max(axis=0))
        saved_ns: list[float] = (ends_ns[-1] - ends_ns[:-1]).tolist()
        return saved_ns

    def _run(self, times_ns: Floats, row: Rows, shares: Floats) -> None:
        """Put the times of all nodes that wait into their rows: as late as the latest edge makes them."""
        edges, parts = self.edges, self._events.part
        spare, add, maximum = np.empty(times_ns.shape[1]), np.add, np.maximum
        is_first = np.append(True, np.diff(edges.target) != 0)
        for begin in range(0, len(edges.target), _AT_ONCE):
            some = slice(begin, begin + _AT_ONCE)
            target, source, fixed_ns, delay_ns, part, tail = (column[some] for column in edges)
            after_ns = fixed_ns[:, None] + delay_ns[:, None] * shares[part]
            after_ns += np.where(tail < 0, 0.0, self.transfer_ns[tail])[:, None] * shares[parts[tail]]
            targets, sources = row[target].tolist(), np.where(source < 0, 0, row[source]).tolist()
            for to, of, first, after in zip(targets, sources, is_first[some].tolist(), after_ns, strict=True):
                if first:
                    add(times_ns[of], after, times_ns[to])
                else:
                    add(times_ns[of], after, spare)
                    maximum(times_ns[to], spare, out=times_ns[to])


def critical_path(
    events: PathEvents,
    parts: Sequence[Part],
    calls_ns: Mapping[int, Iterable[float]],
    begin_ns: Mapping[int, float],
    *,
    top: int,
) -> list[PathPart]:
    """The `top` parts of the longest chain, the longest first. `parts` contain `DELAY` and `FIRST`, each once.

    `calls_ns` are the durations of the host's calls that may wait for the device, by rank in their order; `begin_ns` is
    the begin of the step on the host.
    """
    graph = _Graph(events, parts, calls_ns, begin_ns)
    found = sorted(
        ((time_ns, parts[part], part) for part, time_ns in graph.path_ns().items() if time_ns > 0),
        reverse=True,
    )
    total_ns = sum(time_ns for time_ns, *_ in found)
    saved_ns = graph.saved_ns([number for *_, number in found[:top]], len(parts))
    return [
        PathPart(part, time_ns, saved, time_ns / total_ns)
        for (time_ns, part, _), saved in zip(found[:top], saved_ns, strict=True)
    ]
