"""Everything that a trace holds: recognised points with each of their occurrences, and the kernels that are left over.

A kernel belongs to the call that launched it, forward; or to the forward call whose derivative the launching node of
autograd computes, backward. The time of an occurrence lasts from its earliest kernel's start to its latest one's end.
"""

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelcast.collector.ingest.arguments import Arguments, arguments_of, whole
from kernelcast.collector.ingest.collectives import COMMUNICATION_CALL, collective, gloo_collective
from kernelcast.collector.ingest.host import HostOperators
from kernelcast.collector.ingest.points import NO_OPERATOR, Point, Unclear
from kernelcast.collector.ingest.recognise import RECOGNISED, Surroundings, recognised
from kernelcast.collector.traces.kineto import (
    ANNOTATION_CATEGORY,
    DEVICE_CATEGORIES,
    RESOLUTION_US,
    Event,
    Trace,
)
from kernelcast.runtime.operators import Direction

_NO_CALL = Unclear("no operator of the host is recorded for it")
_NO_FORWARD = Unclear("backward of a call that cannot be told")
_ACCUMULATION = "AccumulateGrad"
_NO_DURATION = Unclear("took no time")


@dataclass(frozen=True, slots=True)
class Piece:
    """One kernel (on a CPU: one call with time of its own, `duration_us`, inside of `end_us − start_us`)."""

    name: str
    category: str
    start_us: float
    duration_us: float
    end_us: float
    stream: int
    call: int | None  # index of the call on the host


@dataclass(slots=True)
class Occurrence:
    """One execution of a point. Times in µs of the trace's clock."""

    pieces: list[Piece] = field(default_factory=list)
    is_overlapped: bool = False  # kernels of other streams ran meanwhile

    @property
    def start_us(self) -> float:
        """Start of the earliest kernel."""
        return min(piece.start_us for piece in self.pieces)

    @property
    def end_us(self) -> float:
        """End of the latest kernel."""
        return max(piece.end_us for piece in self.pieces)


Kind = tuple[Point, Direction]
LeftKey = tuple[str, str, int, str, str, str]
"""Name, category, stream, operator on the host, its shapes, reason."""


@dataclass(slots=True)
class Extracted:
    """What a trace holds. Counts and times (µs) are of kernels."""

    points: dict[Kind, list[Occurrence]] = field(default_factory=lambda: defaultdict(list))
    left: dict[LeftKey, tuple[int, float]] = field(default_factory=dict)
    count: int = 0
    total_us: float = 0.0
    attributed_count: int = 0
    attributed_us: float = 0.0
    recognised_count: int = 0
    recognised_us: float = 0.0


def extract(trace: Trace, gpus_per_node: int) -> Extracted:
    """Sort every kernel of a trace into occurrences of points, or into what is left. 0 GPUs per node: unknown."""
    host = HostOperators(trace)
    work = _Work(host, Surroundings.of(host), gpus_per_node)
    on_device = trace.of_category(*DEVICE_CATEGORIES)
    if on_device:
        work.device(on_device)
    elif not _ran_elsewhere(trace, host):
        work.cpu(trace)
    return work.result(overlaps=bool(on_device))


def _ran_elsewhere(trace: Trace, host: HostOperators) -> bool:
    """Whether kernels ran on a device that the profiler did not record: what the host did is then no work."""
    annotated = any(event.name.startswith("nccl:") for event in trace.of_category(ANNOTATION_CATEGORY))
    return host.launched_anything or annotated or trace.distributed.get("backend") == "nccl"


class _Work:
    def __init__(self, host: HostOperators, around: Surroundings, gpus_per_node: int) -> None:
        self._host = host
        self._around = around
        self._gpus_per_node = gpus_per_node
        self._found: dict[int, Point | Unclear] = {}
        self._occurrences: dict[tuple[int, Direction], Occurrence] = defaultdict(Occurrence)
        self._kinds: dict[tuple[int, Direction], Kind] = {}
        self._pieces: list[Piece] = []
        self._left: list[tuple[Piece, str]] = []

    def device(self, kernels: Iterable[Event]) -> None:
        """Sort the kernels of a device."""
        for number, event in enumerate(kernels):
            arguments = arguments_of(event)
            call = self._host.launching(event, arguments)
            stream = next((n for n in (whole(arguments.stream), whole(event.tid)) if n is not None), 0)
            duration_us = max(event.duration_us, 0.0)
            piece = Piece(
                event.name,
                event.category,
                event.start_us,
                duration_us,
                event.start_us + duration_us,
                stream,
                call,
            )
            if event.category == "kernel" and "nccl" in event.name.lower():
                self._add(piece, *self._communication(number, arguments, call))
            else:
                self._add(piece, *self._place(call))

    def cpu(self, trace: Trace) -> None:
        """Sort the calls of a CPU that have time of their own, and the collectives of gloo's threads."""
        calls = self._host.calls
        own_us = [max(call.event.duration_us, 0.0) for call in calls]
        for call in calls:
            if call.parent >= 0:
                own_us[call.parent] -= max(call.event.duration_us, 0.0)
        threads: dict[str, int] = {}
        for index, call in enumerate(calls):
            stream = threads.setdefault(call.event.thread, len(threads))
            if own_us[index] >= RESOLUTION_US:
                self._add(_piece_of(call.event, own_us[index], stream, index), *self._place(index))
        only = _only_group(trace.distributed.get("pg_config"))
        for number, event in enumerate(trace.of_category(ANNOTATION_CATEGORY)):
            if event.name.startswith("gloo:"):
                stream = threads.setdefault(event.thread, len(threads))
                found = gloo_collective(event.name, arguments_of(event), only, self._gpus_per_node)
                piece = _piece_of(event, max(event.duration_us, 0.0), stream, None)
                self._add(piece, found, -1 - number, Direction.ONCE)

    def _communication(
        self, number: int, arguments: Arguments, call: int | None
    ) -> tuple[Point | Unclear, int, Direction]:
        if not isinstance(arguments.collective, str) and call is not None:
            calls = (self._host.calls[index] for index in self._host.chain(call))
            arguments = next((c.arguments for c in calls if c.event.name == COMMUNICATION_CALL), arguments)
        return collective(arguments, self._gpus_per_node), -1 - number, Direction.ONCE

    def _place(self, call: int | None) -> tuple[Point | Unclear, int, Direction]:
        """What a kernel is part of: the point, the call that stands for the occurrence, and the direction."""
        if call is None:
            return _NO_CALL, 0, Direction.FORWARD
        calls, node = self._host.within(call)
        direction = Direction.FORWARD
        if node is not None:
            direction = Direction.BACKWARD
            forward = self._host.forward_of(node)
            if forward is None:
                adds_up = _ACCUMULATION in self._host.calls[node].event.name
                return NO_OPERATOR if adds_up else _NO_FORWARD, 0, direction
            calls, _ = self._host.within(forward)
        candidates = [index for index in calls if self._host.calls[index].event.name in RECOGNISED]
        if not candidates:
            return NO_OPERATOR, 0, direction
        outermost = candidates[-1]
        if outermost not in self._found:
            of = self._host.calls[outermost]
            self._found[outermost] = recognised(of.event.name, of.arguments, self._around)
        return self._found[outermost], outermost, direction

    def _add(self, piece: Piece, found: Point | Unclear, instance: int, direction: Direction) -> None:
        self._pieces.append(piece)
        if isinstance(found, Unclear):
            self._left.append((piece, found.reason))
            return
        self._occurrences[instance, direction].pieces.append(piece)
        self._kinds[instance, direction] = found, direction

    def result(self, *, overlaps: bool) -> Extracted:
        """All of it, added up; `overlaps`: whether streams run beside each other."""
        done = Extracted()
        streams = _Streams(self._pieces) if overlaps else None
        for key, occurrence in self._occurrences.items():
            if occurrence.end_us <= occurrence.start_us:
                self._left += [(piece, _NO_DURATION.reason) for piece in occurrence.pieces]
                continue
            occurrence.is_overlapped = streams is not None and streams.overlap(occurrence)
            done.points[self._kinds[key]].append(occurrence)
            done.recognised_count += len(occurrence.pieces)
            done.recognised_us += sum(piece.duration_us for piece in occurrence.pieces)
        for piece in self._pieces:
            done.count += 1
            done.total_us += piece.duration_us
            if piece.call is not None:
                done.attributed_count += 1
                done.attributed_us += piece.duration_us
        for piece, reason in self._left:
            left = self._key(piece, reason)
            count, total_us = done.left.get(left, (0, 0.0))
            done.left[left] = count + 1, total_us + piece.duration_us
        return done

    def _key(self, piece: Piece, reason: str) -> LeftKey:
        if piece.call is None:
            return piece.name, piece.category, piece.stream, "", "", reason
        call = self._host.calls[piece.call]
        dims = call.arguments.dims
        shapes = json.dumps(dims, separators=(",", ":")) if isinstance(dims, list) and any(dims) else ""
        return piece.name, piece.category, piece.stream, call.event.name, shapes, reason


def _piece_of(event: Event, own_us: float, stream: int, call: int | None) -> Piece:
    return Piece(event.name, event.category, event.start_us, own_us, event.end_us, stream, call)


def _only_group(groups: Any) -> Sequence[int]:
    """Ranks of the only group that a trace lists; none where it lists several, or none."""
    if not isinstance(groups, list) or len(groups) != 1 or not isinstance(groups[0], dict):
        return ()
    ranks = groups[0].get("ranks")
    return ranks if isinstance(ranks, list) and all(type(rank) is int for rank in ranks) else ()


class _Streams:
    """When each stream was busy: kernels of one stream run one after another."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._busy: dict[int, tuple[list[float], list[float]]] = {}
        for piece in pieces:  # by start time, as the trace's events are
            starts, ends = self._busy.setdefault(piece.stream, ([], []))
            starts.append(piece.start_us)
            ends.append(max(piece.end_us, ends[-1]) if ends else piece.end_us)

    def overlap(self, occurrence: Occurrence) -> bool:
        """Whether a stream that the occurrence does not use was busy meanwhile."""
        own = {piece.stream for piece in occurrence.pieces}
        return any(self._is_busy(stream, occurrence) for stream in self._busy.keys() - own)

    def _is_busy(self, stream: int, occurrence: Occurrence) -> bool:
        starts, ends = self._busy[stream]
        last = bisect_left(starts, occurrence.end_us) - 1
        return last >= 0 and ends[last] > occurrence.start_us


def in_order(occurrences: Iterable[Occurrence]) -> Iterator[Occurrence]:
    """Occurrences by start, each with its kernels by start."""
    for occurrence in sorted(occurrences, key=lambda o: o.start_us):
        occurrence.pieces.sort(key=lambda piece: piece.start_us)
        yield occurrence
