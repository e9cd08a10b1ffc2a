"""Every event of a trace as it is stored: its kind, its times, and its launch."""

import heapq
import json
from array import array
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

from kernelcast.collector.ingest.attribute_kernels import AttributedKernel, Extracted, KernelSpan, SampleKey
from kernelcast.collector.ingest.collectives import group_ranks
from kernelcast.collector.ingest.matching import CollectiveCall, collective_call
from kernelcast.collector.ingest.recognised_calls import DTYPES, RecognisedCall, product_shape
from kernelcast.collector.ingest.scopes import Steps, scopes_of, steps_of
from kernelcast.collector.traces.arguments import Arguments, shapes, shapes_text, texts, whole
from kernelcast.collector.traces.kineto import Trace
from kernelcast.store import EventKind, TracedEvent, TracedStep


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


_RANKS = {"compute": 0, "communication": 1, "memory": 2}
_COMMUNICATION = ("nccl", "rccl", "msccl", "gloo:", "cross_device_reduce", "c10d::", "deep_ep", "nvshmem")
_MEMORY_CATEGORIES = ("gpu_memcpy", "gpu_memset")
_BYTES = {
    "float64": 8, "double": 8, "long": 8, "int64": 8, "float32": 4, "float": 4, "int": 4, "int32": 4,
    "float16": 2, "half": 2, "bfloat16": 2, "short": 2, "int8": 1, "char": 1, "byte": 1, "signed char": 1,
    "unsigned char": 1, "uint8": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip


@dataclass(frozen=True)
class TraceEvents:
    """Steps and events of a trace, computed lazily; `samples` are the ids of the samples by key."""

    trace: Trace
    extracted: Extracted
    samples: Mapping[SampleKey, str]

    @property
    def start_us(self) -> float:
        """Start of the trace: its first event."""
        return self.trace.events[0].start_us

    def _ns(self, time_us: float) -> int:
        return round((time_us - self.start_us) * 1e3)

    @cached_property
    def steps(self) -> tuple[TracedStep, ...]:
        """The steps that the host marked."""
        return tuple(
            TracedStep(step.name, self._ns(step.start_us), round(step.duration_us * 1e3))
            for step in steps_of(self.trace)
        )

    @cached_property
    def _scopes(self) -> Sequence[str]:
        return scopes_of(self.trace, self.extracted.tree)

    @cached_property
    def _figures(self) -> "tuple[array[int], array[int], array[int], array[int]]":
        """Start, exposed, idle and late time of every event, ns; late is -1 where it is not known."""
        pieces = self.extracted.pieces
        by_device: dict[int, array[int]] = {}
        for place, placed in enumerate(pieces):
            by_device.setdefault(placed.piece.device, array("q")).append(place)
        # Arrays take a tenth of the memory of lists.
        empty = array("q", [0]) * len(pieces)
        starts, exposed, idle, late = empty[:], empty[:], empty[:], empty
        for places in by_device.values():
            for number, span in expose(self._span(pieces[place].piece) for place in places):
                place = places[number]
                starts[place], exposed[place], idle[place] = span.start_ns, span.exposed_ns, span.idle_ns
                late[place] = -1 if span.late_ns is None else span.late_ns
        return starts, exposed, idle, late

    def _span(self, piece: KernelSpan) -> Span:
        launch_us = piece.launch_us if self.extracted.is_device else piece.start_us
        start_ns = self._ns(piece.start_us)
        return Span(
            start_ns,
            max(self._ns(piece.end_us), start_ns),
            _RANKS[_class_of(piece)],
            None if launch_us is None else self._ns(launch_us),
        )

    def __iter__(self) -> Iterator[TracedEvent]:
        steps = Steps(steps_of(self.trace))
        before_recording = _launched_before_recording([placed.piece for placed in self.extracted.pieces])
        for number, (placed, kind, start_ns, exposed_ns, idle_ns, late_ns) in enumerate(
            zip(self.extracted.pieces, self._kinds, *self._figures, strict=True)
        ):
            piece = placed.piece
            occurrence = piece.occurrence
            yield TracedEvent(
                kind=kind,
                start_ns=start_ns,
                duration_ns=round(piece.duration_us * 1e3),
                exposed_ns=exposed_ns,
                idle_ns=idle_ns,
                late_ns=None if late_ns < 0 else late_ns,
                device=piece.device,
                stream=piece.stream,
                step=None
                if number in before_recording
                else steps.at(piece.start_us if piece.launch_us is None else piece.launch_us),
                launch_ns=None if piece.launch_us is None else self._ns(piece.launch_us),
                call=piece.call,
                correlation=piece.correlation,
                scope="" if piece.call is None else self._scopes[piece.call],
                sample_id=self.samples.get(occurrence.kind, "") if occurrence and occurrence.kind else "",
                repetition=occurrence.index if occurrence and occurrence.kind else None,
            )

    def collectives(self, rank: int | None) -> tuple[CollectiveCall, ...]:
        """The collectives of the trace, in order of launch, for the match with other ranks."""
        kinds, (_, exposed, _, late) = self._kinds, self._figures
        calls = []
        done: dict[int, list[int]] = {}
        for number, (placed, kind) in enumerate(zip(self.extracted.pieces, kinds, strict=True)):
            until = done.setdefault(placed.piece.device, [0, 0, 0])
            until[2] += max(late[number], 0)
            if kind.class_ == "communication":
                done_ns = until[0], until[1], until[2]
                found = collective_call(number, placed, rank, size_bytes=kind.message_bytes,
                                        start_us=self.start_us, done_ns=done_ns)  # fmt: skip
                calls += [] if found is None else [(placed.piece.launch_us or placed.piece.start_us, found)]
            else:
                until[kind.class_ == "memory"] += exposed[number]
        return tuple(call for _, call in sorted(calls, key=itemgetter(0)))

    @cached_property
    def _kinds(self) -> Sequence[EventKind]:
        known: dict[tuple[Any, ...], EventKind] = {}
        return [self._kind(placed, known) for placed in self.extracted.pieces]

    def _kind(self, placed: AttributedKernel, kinds: dict[tuple[Any, ...], EventKind]) -> EventKind:
        piece, found, described = placed.piece, placed.found, placed.described
        tree = self.extracted.tree
        name, listed, types = "", "", tuple[str, ...]()
        if piece.call is not None:
            arguments = tree.arguments[piece.call]
            name, listed = tree.calls[piece.call].name, shapes_text(arguments.dims)
            types = tuple(texts(arguments.types))
        is_part = (
            isinstance(found, RecognisedCall)
            and piece.occurrence is not None
            and piece.occurrence.kind is not None
        )
        message = {} if described is None else _message(described)
        if piece.launch is not None:
            message |= {
                name: value for name, value in piece.launch._asdict().items() if value not in ("", None)
            }
        key = (
            piece.name,
            piece.category,
            name,
            listed,
            types,
            found,
            is_part,
            placed.direction,
            *message.items(),
        )
        if (known := kinds.get(key)) is not None:
            return known
        point = found if is_part and isinstance(found, RecognisedCall) else None
        first = next((DTYPES[text] for text in types if text in DTYPES), "")
        product = product_shape(name, shapes(json.loads(listed)) if listed else ())
        reason = "" if isinstance(found, RecognisedCall) else found.reason
        fields: dict[str, Any] = {name: value for name, value in message.items() if name != "dtype"}
        if product:
            fields |= dict(zip(("batch", "m", "k", "n"), product, strict=True))
        kinds[key] = kind = EventKind(
            name=piece.name,
            category=piece.category,
            class_=_class_of(piece),
            host_operator=name,
            shapes=listed,
            direction=placed.direction.value if piece.call is not None or point else "",
            operator=point.operator if point else "",
            role=point.role if point else "",
            dtype=point.dtype if point else first or message.get("dtype", ""),
            variant=point.variant if point else "",
            vector=json.dumps(point.vector, separators=(",", ":")) if point else "",
            reason=reason,
            **fields,
        )
        return kind


def _launched_before_recording(pieces: Sequence[KernelSpan]) -> set[int]:
    """Indexes of kernels that were launched before the trace began: they belong to none of its steps.

    Streams run in order of launch. So a kernel without a recorded launch was launched before the recording if no kernel
    with one ran before it on its stream. A trace without launches (of a CPU, of a device alone) says nothing of this.
    """
    ahead: list[int] = []
    recorded: set[tuple[int, int]] = set()
    for number in sorted(range(len(pieces)), key=lambda one: pieces[one].start_us):
        piece = pieces[number]
        if piece.launch_us is not None:
            recorded.add((piece.device, piece.stream))
        elif (piece.device, piece.stream) not in recorded:
            ahead.append(number)
    return set(ahead) if recorded else set()


def _class_of(piece: KernelSpan) -> str:
    if piece.category in _MEMORY_CATEGORIES:
        return "memory"
    name = piece.name.lower()
    return "communication" if any(part in name for part in _COMMUNICATION) else "compute"


def _message(arguments: Arguments) -> dict[str, Any]:
    """The message of a collective; empty where it was not recorded."""
    if not isinstance(arguments.collective, str):
        return {}
    ranks, dtype = group_ranks(arguments), str(arguments.dtype or "")
    elements = [
        n for n in (whole(arguments.elements_in), whole(arguments.elements_out)) if n is not None and n > 0
    ]
    size = _BYTES.get(dtype.lower().removeprefix("c10::"))
    listed = arguments.group_ranks
    return {
        "collective": arguments.collective,
        "group_ranks": listed if isinstance(listed, str) else "",
        "group_size": whole(arguments.group_size) or (len(ranks) if ranks else None),
        "message_bytes": max(elements) * size if elements and size else None,
        "dtype": DTYPES.get(dtype, dtype.lower()),
    }
