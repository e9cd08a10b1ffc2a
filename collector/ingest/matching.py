"""Matches the collectives of the ranks of a run, and relates the ranks' clocks.

Collectives of a process group are matched by their recorded sequence numbers. Without numbers they are matched
by their order of launch if names and sizes agree; recordings that begin at different calls, or lack some, by name, size
and end, on clocks as they are or moved by what most ends agree on.

Profilers lose events. Where all ranks of a group are traced and one lacks a collective between two that it has, it was
late by the excess of the collective's duration on the others.

Clocks of one host are taken as they are. The clock of another host is set by the ends of collectives, at which all
ranks of a group leave within microseconds: an offset (the median) and, where it is significant, a drift.
"""

import math
import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelcast.collector.ingest.collectives import group_ranks, kind_of
from kernelcast.collector.ingest.kernel_columns import AttributedKernel
from kernelcast.collector.traces.arguments import whole
from kernelcast.store.runs import LostCollective, TraceClock

_SYNCHRONISING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
_KERNEL = re.compile(r"(?:nccl|rccl)\w*?Kernel_([A-Za-z]+)")
_MOST_SHIFT = 16
_FEWEST_FOR_DRIFT = 10
_MOST_FOR_DRIFT = 200
_SAME_CLOCK_NS = 100_000  # hosts that are not named have one clock if the ends differ by less
_SLACK_NS = 1_000_000
_AGREEING = 0.5  # of the calls, at least

Lists = Mapping[int, "Sequence[CollectiveCall]"]
Match = Mapping[int, "CollectiveCall"]
"""One collective: the calls of the traced ranks that ran it, by position among the ranks."""


class _Found(NamedTuple):
    match: Match
    lost: Sequence[int] = ()  # ranks whose traces lack it
    usual_ns: int | None = None  # its transfer; None where the lost rank was not late


class CollectiveCall(NamedTuple):
    """A collective on one rank, times in ns of its trace; `size_bytes` is None if unknown or not equal on all ranks."""

    sequence: int  # its event in the timeline
    group: tuple[Hashable, ...]
    name: str
    size_bytes: int | None
    number: int | None  # as recorded, in its group
    done_ns: tuple[int, int, int]  # compute, copies and waiting for the host, of the rank until it began
    start_ns: int
    end_ns: int
    is_synchronising: bool

    @property
    def text(self) -> tuple[str, int | None]:
        """Name and size, which equal collectives share."""
        return self.name, self.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCalls:
    """The collectives of a rank, in order of launch; `start_ns` is Unix time, None where the clock counts otherwise."""

    start_ns: int | None
    host: Hashable  # None where it is not known
    calls: Sequence[CollectiveCall] = field(repr=False)


def collective_call(
    number: int,
    piece: AttributedKernel,
    rank: int | None,
    *,
    size_bytes: int | None,
    start_us: float,
    done_ns: tuple[int, int, int],
) -> CollectiveCall | None:
    """The call of a communication kernel, event `number` of its timeline; None for a transfer of unrecorded ranks."""
    described = piece.described
    found = _KERNEL.search(piece.name)
    name = (found[1] if found else piece.name.partition(":")[2]).lower()
    group: tuple[Hashable, ...] = ()
    recorded = None
    if described is not None and isinstance(described.collective, str):
        name, recorded = described.collective, whole(described.recorded_number)
        group = str(described.group_name or ""), str(described.group_ranks or ""), whole(described.group_size)
        if name in ("send", "recv"):
            peer = whole(described.destination_rank if name == "send" else described.source_rank)
            ranks = group_ranks(described)
            own = ranks.index(rank) if ranks is not None and rank in ranks else rank
            if peer is None or own is None:
                return None
            # Every rank counts its own transfers.
            group, recorded = (*group, *((own, peer) if name == "send" else (peer, own))), None
            name = "send"
    kind = kind_of(name) or kind_of(re.sub(r"^(all|reduce)(?=[a-z])", r"\1_", name)) or name
    if not group and kind not in _SYNCHRONISING:
        return None
    return CollectiveCall(
        sequence=number,
        group=group,
        name=kind,
        size_bytes=None if kind == "all_to_all" else size_bytes,
        number=recorded,
        done_ns=done_ns,
        start_ns=round((piece.start_us - start_us) * 1e3),
        end_ns=round((piece.end_us - start_us) * 1e3),
        is_synchronising=kind in _SYNCHRONISING,
    )


def matched(
    ranks: Sequence[RankCalls],
) -> tuple[list[TraceClock], list[dict[int, int]], list[list[LostCollective]]]:
    """Of every rank the clock, the number of the collective of every matched event, and what its trace lacks."""
    starts = [rank.start_ns for rank in ranks]
    base_ns = min((start for start in starts if start is not None), default=0)
    begins = [0 if start is None else start - base_ns for start in starts]
    # A rank whose clock counts otherwise is a host of its own.
    hosts: list[Hashable] = [
        (place,) if rank.start_ns is None else rank.host for place, rank in enumerate(ranks)
    ]
    groups: dict[tuple[Hashable, ...], dict[int, list[CollectiveCall]]] = defaultdict(dict)
    for place, rank in enumerate(ranks):
        for call in rank.calls:
            moved = call._replace(start_ns=call.start_ns + begins[place], end_ns=call.end_ns + begins[place])
            groups[call.group].setdefault(place, []).append(moved)
    candidates = [one for lists in groups.values() for one in _matches(lists, hosts)]
    lines = _lines(hosts, [one.match for one in candidates])
    found = [one for one in candidates if _is_possible(one.match, lines)]
    found.sort(key=lambda one: min(lines[place].on_run(call.start_ns) for place, call in one.match.items()))
    run_ns = [round(line.on_run(begin)) for line, begin in zip(lines, begins, strict=True)]
    first_ns = min(run_ns, default=0)
    numbers: list[dict[int, int]] = [{} for _ in ranks]
    lost: list[list[LostCollective]] = [[] for _ in ranks]
    for number, (match, lacking, usual_ns) in enumerate(found):
        for place, call in match.items():
            numbers[place][call.sequence] = number
        if lacking:
            spans = [
                [lines[place].on_run(ns) for ns in (call.start_ns, call.end_ns)]
                for place, call in match.items()
            ]
            start_ns, end_ns = np.median(spans, axis=0).tolist()
            start_ns = start_ns if usual_ns is None else end_ns - usual_ns
            part = LostCollective(number, round(start_ns) - first_ns, round(end_ns - start_ns))
            for place in lacking:
                lost[place].append(part)
    clocks = [
        TraceClock(start - first_ns, -line.drift, round(line.error_ns))
        for start, line in zip(run_ns, lines, strict=True)
    ]
    return clocks, numbers, lost


def _matches(lists: Lists, hosts: Sequence[Hashable]) -> Iterator[_Found]:
    """The collectives of one group that at least two traced ranks ran."""
    if len(lists) < 2:
        return
    by_key: dict[Any, dict[int, CollectiveCall]] = defaultdict(dict)
    if all(call.number is not None for calls in lists.values() for call in calls):
        for place, calls in lists.items():
            seen: dict[int | None, int] = defaultdict(int)  # coalesced collectives have one number
            for call in calls:
                by_key[call.number, seen[call.number]][place] = call
                seen[call.number] += 1
    else:
        first = max(lists, key=lambda place: (len(lists[place]), -place))
        for place, calls in lists.items():
            is_one_host = hosts[place] is not None and hosts[place] == hosts[first]
            same = (
                range(len(calls)) if place == first else _same(lists[first], calls, is_one_host=is_one_host)
            )
            for call, index in zip(calls, same, strict=True):
                if index is not None:
                    by_key[index][place] = call
    alike = {key: match for key, match in by_key.items() if len({call.text for call in match.values()}) == 1}
    yield from _with_lost(alike, lists)


def _with_lost(matches: Mapping[Any, Match], lists: Lists) -> Iterator[_Found]:
    """The matches of a group, by keys in its order, with the ranks that lack them between two that they have."""
    keys = {place: [key for key, match in matches.items() if place in match] for place in lists}
    spans = {place: (min(own), max(own)) for place, own in keys.items() if own}
    transfers_ns: dict[tuple[str, int | None], list[int]] = defaultdict(list)
    shortest_ns = {
        key: min(call.end_ns - call.start_ns for call in match.values()) for key, match in matches.items()
    }
    for key, match in matches.items():
        if len(match) == len(lists):
            transfers_ns[next(iter(match.values())).text].append(shortest_ns[key])
    for key, match in matches.items():
        call = next(iter(match.values()))
        is_whole_group = len(call.group) == 3 and call.group[2] == len(lists) and call.is_synchronising
        lost = [
            place for place, (first, last) in spans.items() if place not in match and first < key < last
        ] if is_whole_group else []  # fmt: skip
        known_ns = transfers_ns.get(call.text)
        is_late = len(lost) == 1 and known_ns is not None and shortest_ns[key] > max(known_ns)
        if len(match) > 1 or (lost and known_ns):
            yield _Found(match, lost, round(float(np.median(known_ns))) if is_late and known_ns else None)


def _same(
    first: Sequence[CollectiveCall], second: Sequence[CollectiveCall], *, is_one_host: bool
) -> Sequence[int | None]:
    """For each call of `second`, the index in `first` of the same collective; None where that lacks it.

    Lists that agree in all names and sizes, and whose calls overlap in time if the clocks are one, agree in order.
    """
    in_order = list(range(len(second)))
    overlapping = sum(one.start_ns <= two.end_ns and two.start_ns <= one.end_ns
                      for one, two in zip(first, second, strict=False))  # fmt: skip
    is_overlapping = overlapping >= _AGREEING * len(second)
    if [one.text for one in first] == [two.text for two in second] and (is_overlapping or not is_one_host):
        return in_order
    straight = _nearest(first, second, 0)
    close = [abs(first[index].end_ns - call.end_ns) < _SLACK_NS
             for call, index in zip(second, straight, strict=True) if index is not None]  # fmt: skip
    if is_one_host or sum(close) >= _AGREEING * len(straight):
        return straight
    return _nearest(first, second, _offset(first, second))


def _nearest(
    first: Sequence[CollectiveCall], second: Sequence[CollectiveCall], offset_ns: int
) -> Sequence[int | None]:
    """Calls of one name and size whose ends are each other's nearest, on clocks that differ by an offset."""
    found: list[int | None] = [None] * len(second)
    places: dict[tuple[str, int | None], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, calls in enumerate((first, second)):
        for index, call in enumerate(calls):
            places[call.text][side].append(index)
    for ones, twos in places.values():
        if not ones or not twos:
            continue
        apart = np.abs(
            np.array([first[index].end_ns for index in ones])[:, None]
            - np.array([second[index].end_ns - offset_ns for index in twos])
        )
        of_two, of_one = apart.argmin(0), apart.argmin(1)
        for place, index in enumerate(twos):
            if of_one[of_two[place]] == place:
                found[index] = ones[of_two[place]]
    return found


def _offset(first: Sequence[CollectiveCall], second: Sequence[CollectiveCall]) -> int:
    """How far the clock of `second` is ahead, ns, as ends of calls tell, whichever of `first` its calls begin at.

    Most names and sizes agree at the right place, and the ends of the right pairs differ by the same offset.
    """
    most = min(abs(len(first) - len(second)) + 2, _MOST_SHIFT)
    scores = []
    for shift in range(-most, most + 1):
        pairs = [(first[i + shift], call) for i, call in enumerate(second) if 0 <= i + shift < len(first)]
        apart = np.array([two.end_ns - one.end_ns for one, two in pairs if one.text == two.text], float)
        if len(apart):
            offset = float(np.median(apart))
            spread = float(np.median(np.abs(apart - offset))) // _SAME_CLOCK_NS
            scores.append((1 - len(apart) / len(pairs), spread, abs(offset), offset))
    return round(min(scores)[-1]) if scores else 0


class _Line(NamedTuple):
    """How far a clock is ahead of the run's: `offset_ns` at time 0, and its growth."""

    offset_ns: float = 0.0
    drift: float = 0.0
    error_ns: float = 0.0

    def on_run(self, time_ns: float) -> float:
        """A time of this clock on the run's."""
        return time_ns - self.offset_ns - self.drift * time_ns


def _lines(hosts: Sequence[Hashable], matches: Sequence[Match]) -> list[_Line]:
    """Every rank's clock relative to the first rank's host, host by host from those that are known already."""
    keys = [("rank", place) if host is None else host for place, host in enumerate(hosts)]
    ends: dict[Hashable, dict[Hashable, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for match in matches:
        by_host: dict[Hashable, list[int]] = defaultdict(list)
        for place, call in match.items():
            if call.is_synchronising:
                by_host[keys[place]].append(call.end_ns)
        middle = {host: float(np.median(times)) for host, times in by_host.items()}
        # All pairs of many hosts would be quadratic: the first host of a collective relates the others.
        first = min(middle, key=keys.index, default=None)
        for host in middle.keys() - {first}:
            ends[first][host].append((middle[host], middle[host] - middle[first]))
            ends[host][first].append((middle[first], middle[first] - middle[host]))
    known: dict[Hashable, _Line] = {keys[0]: _Line()} if keys else {}
    waiting = list(known)
    for one in waiting:
        for two, pairs in ends[one].items():
            if two in known:
                continue
            line = _line(np.array(pairs))
            is_named = not (isinstance(two, tuple) and two[:1] == ("rank",))
            if not is_named and abs(line.offset_ns) < 3 * line.error_ns + _SAME_CLOCK_NS:
                line = _Line(error_ns=line.error_ns)
            base = known[one]
            error_ns = math.hypot(line.error_ns, base.error_ns)
            known[two] = _Line(line.offset_ns + base.offset_ns, line.drift + base.drift, error_ns)
            waiting.append(two)
    return [known.get(key, _Line()) for key in keys]


def _line(pairs: NDArray[np.float64]) -> _Line:
    """The line through [n, 2] of (time, difference), ns."""
    times, differences = pairs[:, 0], pairs[:, 1]
    offset, slope = float(np.median(differences)), 0.0
    spread = 1.4826 * float(np.median(np.abs(differences - offset)))
    if len(pairs) >= _FEWEST_FOR_DRIFT and np.ptp(times) > 0:
        chosen = np.unique(np.linspace(0, len(pairs) - 1, min(len(pairs), _MOST_FOR_DRIFT)).astype(int))
        x, y = times[chosen], differences[chosen]
        one, two = np.triu_indices(len(x), 1)
        apart = x[two] - x[one]
        is_apart = apart != 0
        steep = float(np.median((y[two] - y[one])[is_apart] / apart[is_apart]))  # Theil and Sen
        level = float(np.median(differences - steep * times))
        left = 1.4826 * float(np.median(np.abs(differences - steep * times - level)))
        if abs(steep) * np.std(times) * math.sqrt(len(pairs)) > 3 * left and left < spread:
            offset, slope, spread = level, steep, left
    return _Line(offset, slope, spread)


def _is_possible(match: Match, lines: Sequence[_Line]) -> bool:
    """Whether calls that were matched without numbers can be one: the last arrival precedes every end, and the ends
    are less apart than the shortest of them lasts, as far as the clocks tell.
    """
    if any(call.number is not None or not call.is_synchronising for call in match.values()):
        return True
    error_ns = sum(sorted(lines[place].error_ns for place in match)[-2:]) + _SLACK_NS
    ends = [lines[place].on_run(call.end_ns) for place, call in match.items()]
    begun = max(lines[place].on_run(call.start_ns) for place, call in match.items())
    shortest_ns = min(call.end_ns - call.start_ns for call in match.values())
    return begun <= min(ends) + error_ns and max(ends) - min(ends) <= shortest_ns + error_ns
