"""Every event of a trace as it is stored: its kind, its times, and its launch."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.collector.ingest.collectives import group_ranks
from kernelcast.collector.ingest.exposed_time import expose
from kernelcast.collector.ingest.kernel_columns import AttributedKernel, distinct
from kernelcast.collector.ingest.matching import CollectiveCall, collective_call
from kernelcast.collector.ingest.occurrences import Extracted
from kernelcast.collector.ingest.recognised_calls import DTYPES, RecognisedCall, product_shape
from kernelcast.collector.ingest.scopes import Steps, begins_after_pauses, scopes_of, steps_of
from kernelcast.collector.traces.arguments import Arguments, arguments_of, shapes, shapes_text, texts, whole
from kernelcast.collector.traces.events import NO_ID, Events, Floats, Integers
from kernelcast.collector.traces.kineto import Trace
from kernelcast.runtime.operators import Direction
from kernelcast.store import EventKind, TracedEvent, TracedStep
from kernelcast.store.runs import CUT, EVENTS_AT_ONCE, Columns, EventColumns

RECOMPUTATION = "recomputation"
"""Direction of an event that computes a forward pass again; its sample is one of a forward pass."""
_RANKS = {"compute": 0, "communication": 1, "memory": 2}
_SAME_SHARE = 0.99  # of calls with kernels: below, a step lacks some
_COMMUNICATION = ("nccl", "rccl", "msccl", "gloo:", "cross_device_reduce", "c10d::", "deep_ep", "nvshmem")
_MEMORY_CATEGORIES = ("gpu_memcpy", "gpu_memset")
_BYTES = {
    "float64": 8, "double": 8, "long": 8, "int64": 8, "float32": 4, "float": 4, "int": 4, "int32": 4,
    "float16": 2, "half": 2, "bfloat16": 2, "short": 2, "int8": 1, "char": 1, "byte": 1, "signed char": 1,
    "unsigned char": 1, "uint8": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredEvents(EventColumns):
    """Events of a timeline as columns, int64 [events] each in the order of `TracedEvent`; `NO_ID` stands for None.

    Kinds, scopes and samples are positions; an event's sample is its position as a text.
    """

    kinds: Sequence[EventKind]
    scopes: Sequence[str]
    columns: Sequence[Integers]

    def batches(self) -> Iterator[Columns]:
        sample_ids = [*map(str, range(int(self.columns[_SAMPLE].max(initial=-1)) + 1)), ""]
        for first in range(0, len(self.columns[0]), EVENTS_AT_ONCE):
            part: list[list[Any]] = [
                column[first : first + EVENTS_AT_ONCE].tolist() for column in self.columns
            ]
            part[0] = [self.kinds[number] for number in part[0]]
            part[_SCOPE] = [self.scopes[number] for number in part[_SCOPE]]
            part[_SAMPLE] = [sample_ids[number] for number in part[_SAMPLE]]
            for optional in _OPTIONAL:
                part[optional] = [None if value == NO_ID else value for value in part[optional]]
            yield part


_SCOPE, _SAMPLE = (TracedEvent._fields.index(name) for name in ("scope", "sample_id"))
_OPTIONAL = [
    TracedEvent._fields.index(name)
    for name in ("late_ns", "step", "launch_ns", "call", "correlation", "repetition")
]


@dataclass(frozen=True)
class TraceEvents:
    """Steps and events of a trace, computed lazily."""

    trace: Trace
    extracted: Extracted

    @property
    def start_us(self) -> float:
        """Start of the trace: its first event."""
        return self.trace.events.start_us.item(0)

    @cached_property
    def _steps(self) -> Events:
        return steps_of(self.trace)

    @cached_property
    def steps(self) -> tuple[TracedStep, ...]:
        """The steps that the host marked; `CUT` ends the name of one that the recording or the file has a part of."""
        steps = self._steps
        starts_ns, durations_ns = _ns(steps.start_us - self.start_us), _ns(steps.duration_us)
        lacks = self._lacks_events if self.trace.is_truncated else np.zeros(len(steps), dtype=bool)
        names = (
            step.name
            + CUT * ((is_cut or arguments_of(step).finished is False) and not step.name.endswith(CUT))
            for step, is_cut in zip(steps, lacks.tolist(), strict=True)
        )
        return tuple(map(TracedStep, names, starts_ns.tolist(), durations_ns.tolist()))

    @cached_property
    def _lacks_events(self) -> NDArray[np.bool_]:
        """Steps of a truncated file that lack events: their calls launched fewer kernels than the same calls elsewhere.

        Kineto writes all calls first, then kernels buffer by buffer: any step may lack kernels.
        """
        steps, calls, around = self._steps, self.extracted.tree.calls, self.extracted.pieces.call
        if not self.extracted.is_device:
            return steps.end_us > float(calls.start_us.max(initial=-np.inf))
        has_kernel = np.zeros(len(calls), dtype=bool)
        has_kernel[around[around >= 0]] = True
        rows = np.flatnonzero(np.isin(calls.kind, calls.kind[has_kernel]))
        step = Steps(steps).at(calls.start_us[rows])
        rows, step = rows[step != NO_ID], step[step != NO_ID]
        kinds, kind = np.unique(calls.kind[rows], return_inverse=True)
        called, launched = np.zeros((2, len(steps), len(kinds)))
        np.add.at(called, (step, kind), 1)
        np.add.at(launched, (step, kind), has_kernel[rows])
        wanted = called * (launched / np.maximum(called, 1)).max(axis=0, initial=0.0)
        lacks: NDArray[np.bool_] = launched.sum(axis=1) < _SAME_SHARE * wanted.sum(axis=1)
        return lacks

    @cached_property
    def _times(self) -> dict[str, Integers]:
        """Start, duration, exposed, idle, late and launch time of every event, ns; `NO_ID` where not known.

        The devices of a file, which one process drives, are one: a step's parts add up to its span. Every recording
        begins with its first event: the pause before it is no idle time.
        """
        pieces = self.extracted.pieces
        start, launch = _ns(pieces.start_us - self.start_us), _ns(pieces.launch_us - self.start_us)
        end = np.maximum(_ns(pieces.end_us - self.start_us), start)
        ranks = np.array([_RANKS[kind.class_] for kind in self._kinds[0]], dtype=np.int64)[self._kinds[1]]
        found = {"start": start, "duration": _ns(pieces.duration_us), "launch": launch} | {
            name: np.zeros(len(start), dtype=np.int64) for name in ("exposed", "idle", "late")
        }
        for number in np.unique(self._recording):
            rows = np.flatnonzero(self._recording == number)
            known = launch if self.extracted.is_device else start
            figures = expose(*(column[rows] for column in (start, end, ranks, known)))
            for name, values in zip(("exposed", "idle", "late"), figures, strict=True):
                found[name][rows] = values
        return found

    @cached_property
    def _launched_us(self) -> Floats:
        """When every event was launched, or began if that is not known."""
        pieces = self.extracted.pieces
        return np.where(np.isnan(pieces.launch_us), pieces.start_us, pieces.launch_us)

    @cached_property
    def _recording(self) -> Integers:
        """The number of every event's recording, from 0: a file has several if the profiler paused between steps."""
        pauses = begins_after_pauses(self._steps, self._launched_us)
        return np.searchsorted(pauses, self._launched_us, side="right")

    def stored(self) -> StoredEvents:
        """All events as they are stored; samples are numbered in the order of `extracted.points`."""
        times, pieces = self._times, self.extracted.pieces
        is_launched = ~np.isnan(pieces.launch_us)
        steps = Steps(self._steps).at(self._launched_us)
        streams = np.stack([self._recording, pieces.device, pieces.stream], axis=1)
        steps[_launched_before_recording(streams, is_launched)] = NO_ID
        scopes, numbers = scopes_of(self.trace, self.extracted.tree), {"": 0}
        scope = [
            0 if one < 0 else numbers.setdefault(scopes[one], len(numbers)) for one in pieces.call.tolist()
        ]
        call, sample, repetition = (
            column.astype(np.int64)
            for column in (pieces.call, self.extracted.sample, self.extracted.repetition)
        )
        call[call < 0] = repetition[sample < 0] = NO_ID
        columns = (
            self._kinds[1], *(times[name] for name in ("start", "duration", "exposed", "idle", "late")), pieces.device,
            pieces.stream, steps, times["launch"], call, pieces.correlation, np.array(scope, dtype=np.int64), sample,
            repetition,
        )  # fmt: skip
        return StoredEvents(self._kinds[0], list(numbers), columns)

    def collectives(self, rank: int | None) -> tuple[CollectiveCall, ...]:
        """The collectives of the trace, in order of launch, for the match with other ranks."""
        times, (kinds, numbers), pieces = self._times, self._kinds, self.extracted.pieces
        class_ = np.array([kind.class_ for kind in kinds])[numbers]
        calls = []
        done_ns = [np.cumsum(np.where(class_ == one, times["exposed"], 0)) for one in ("compute", "memory")]
        done_ns.append(np.cumsum(np.maximum(times["late"], 0)))
        for row in np.flatnonzero(class_ == "communication").tolist():
            piece, (compute_ns, memory_ns, late_ns) = pieces[row], (int(one[row]) for one in done_ns)
            found = collective_call(row, piece, rank, size_bytes=kinds[numbers[row]].message_bytes,
                                    start_us=self.start_us, done_ns=(compute_ns, memory_ns, late_ns))  # fmt: skip
            calls += [] if found is None else [(piece.launch_us or piece.start_us, row, found)]
        return tuple(call for _, _, call in sorted(calls, key=itemgetter(0, 1)))

    @cached_property
    def _kinds(self) -> tuple[Sequence[EventKind], Integers]:
        """The kinds of events, and the number of each event's kind."""
        known: dict[tuple[Any, ...], EventKind] = {}
        numbers: dict[int, int] = {}  # by identity: the kinds are all in `known`
        pieces, tree, is_part = self.extracted.pieces, self.extracted.tree, self.extracted.sample >= 0
        call = pieces.call
        of_call = (
            [np.where(call < 0, -1, column[call]) for column in
             (tree.calls.kind, tree.calls.arguments, np.array(tree.recomputed, dtype=np.int32))]
            if len(tree.calls) else []
        )  # fmt: skip
        first, alike = distinct(pieces.kind, pieces.place, pieces.launch, is_part, *of_call)
        column = [
            numbers.setdefault(id(self._kind(pieces[row], known, is_part=bool(is_part[row]))), len(numbers))
            for row in first.tolist()
        ]
        return list(known.values()), np.array(column, dtype=np.int64)[alike]

    def _kind(
        self, piece: AttributedKernel, kinds: dict[tuple[Any, ...], EventKind], *, is_part: bool
    ) -> EventKind:
        found, described = piece.found, piece.described
        tree = self.extracted.tree
        name, listed, types = "", "", tuple[str, ...]()
        direction: str = piece.direction
        if piece.call is not None:
            if piece.direction is Direction.FORWARD and tree.recomputed[piece.call]:
                direction = RECOMPUTATION
            arguments = tree.arguments[piece.call]
            name, listed = tree.names[piece.call], shapes_text(arguments.dims)
            types = tuple(texts(arguments.types))
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
            direction,
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
            direction=direction if piece.call is not None or point else "",
            operator=point.operator if point else "",
            role=point.role if point else "",
            dtype=point.dtype if point else first or message.get("dtype", ""),
            variant=point.variant if point else "",
            vector=json.dumps(point.vector, separators=(",", ":")) if point else "",
            reason=reason,
            **fields,
        )
        return kind


def _ns(time_us: Floats) -> Integers:
    """Whole nanoseconds; `NO_ID` for NaN."""
    missing = np.isnan(time_us)
    return np.where(missing, NO_ID, np.rint(np.where(missing, 0.0, time_us) * 1e3).astype(np.int64))


def _launched_before_recording(streams: Integers, is_launched: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which kernels were launched before their recording began: they belong to none of its steps.

    `streams` are the recording, device and stream of every event, [events, 3]. Streams run in order of launch. So a
    kernel without a recorded launch was launched before the recording if no kernel with one ran before it on its
    stream. A trace without launches (of a CPU, of a device alone) says nothing of this.
    """
    ahead = ~is_launched & is_launched.any()
    for stream in np.unique(streams, axis=0):
        rows = np.flatnonzero((streams == stream).all(axis=1))
        ahead[rows[np.maximum.accumulate(is_launched[rows])]] = False
    return ahead


def _class_of(piece: AttributedKernel) -> str:
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
