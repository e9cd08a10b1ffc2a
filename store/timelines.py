"""Events of traces: records, and writing, reading and verifying their rows one at a time.

An event is a kernel, a copy or a fill (on a CPU a call with self time, or a collective in gloo's threads). An
`EventKind`, stored once, holds the common properties of many events. Times are whole nanoseconds from the start of the
trace.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from typing import Any, ClassVar, NamedTuple

from kernelcast.runtime.bundle.fingerprint import DIGEST_HEX_DIGITS
from kernelcast.store.canonical import Record
from kernelcast.store.rows import Numbers, id_problem, insert

_ROWS_AT_ONCE = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EventKind(Record):
    """What an event is; fields that are unknown or do not apply are empty, 0 or None."""

    table: ClassVar[str] = "event_kind"
    name: str
    category: str  # the profiler's
    class_: str  # compute, communication or memory
    host_operator: str = ""
    shapes: str = ""  # of that operator's inputs, JSON list
    direction: str = ""
    operator: str = ""
    role: str = ""
    dtype: str = ""
    variant: str = ""
    vector: str = ""  # JSON list
    reason: str = ""  # why it is part of no operator
    batch: int | None = None  # of a matrix product [batch, m, k] times [batch, k, n]
    m: int | None = None
    k: int | None = None
    n: int | None = None
    collective: str = ""
    group_ranks: str = ""
    group_size: int | None = None
    message_bytes: int | None = None  # as nccl-tests count them


KIND_COLUMNS = tuple(field.name.rstrip("_") for field in fields(EventKind))


class TracedEvent(NamedTuple):
    """One event; times in ns from the start of the trace."""

    kind: EventKind
    start_ns: int
    duration_ns: int
    exposed_ns: int  # while no event of an earlier class ran: compute, communication, memory
    idle_ns: int  # while nothing ran on the device before it
    late_ns: int | None  # part of `idle_ns` before its launch; None: launch not recorded
    device: int
    stream: int
    step: int | None = None  # position in the timeline's steps
    launch_ns: int | None = None
    call: int | None = None  # number of the launching host call, shared by its events
    correlation: int | None = None
    scope: str = ""  # annotations and modules around the launch, outermost first
    sample_id: str = ""  # its sample and repetition, which are not part of the timeline's id
    repetition: int | None = None


class TracedStep(NamedTuple):
    """A step as the host marked it; times in ns from the start of the trace."""

    name: str
    start_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """The steps and events of a trace; `events` can be iterated more than once."""

    trace_id: str
    steps: tuple[TracedStep, ...]
    events: Iterable[TracedEvent]

    @property
    def id(self) -> str:
        """Digest of trace, steps and events."""
        digest = hashlib.sha256(json.dumps([self.trace_id, self.steps]).encode())
        ids: dict[int, tuple[str, EventKind]] = {}  # by identity, which is quicker than by content
        for kind, *values, _, _ in self.events:
            kind_id, _ = ids.get(id(kind)) or ids.setdefault(id(kind), (kind.id, kind))
            digest.update(f"{kind_id} {values!r}\n".encode())
        return digest.hexdigest()[:DIGEST_HEX_DIGITS]


def write_timeline(connection: sqlite3.Connection, timeline: Timeline) -> bool:
    """Add a timeline of a stored trace and stored samples, in the caller's transaction; returns False if it exists."""
    number = insert(connection, "timeline", {"id": timeline.id, "trace_id": timeline.trace_id})
    if number is None:
        return False
    connection.executemany(
        "INSERT INTO traced_step (timeline_number, step, name, start_ns, duration_ns) VALUES (?, ?, ?, ?, ?)",
        ((number, index, *step) for index, step in enumerate(timeline.steps)),
    )
    kinds, scopes = Numbers(connection, "event_kind", "id"), Numbers(connection, "event_scope", "name")
    samples = Numbers(connection, "sample", "id")
    known: dict[int, tuple[int | None, EventKind]] = {}  # by identity, which is quicker than by content

    def kind_number(kind: EventKind) -> int | None:
        if id(kind) not in known:
            row = dict(zip(KIND_COLUMNS, astuple(kind), strict=True))
            known[id(kind)] = kinds.find(kind.id, {"id": kind.id, **row}), kind
        return known[id(kind)][0]

    columns = "kind_number, start_ns, duration_ns, exposed_ns, idle_ns, late_ns, device, stream, step, launch_ns, call"
    connection.executemany(
        f"INSERT INTO traced_event (timeline_number, sequence, {columns}, correlation, scope_number, sample_number,"
        f" repetition_index) VALUES ({', '.join('?' * 17)})",
        (
            (
                number,
                sequence,
                kind_number(kind),
                *values,
                scopes.find(scope, {"name": scope}) if scope else None,
                samples.find(sample_id) if sample_id else None,
                repetition,
            )
            for sequence, (kind, *values, scope, sample_id, repetition) in enumerate(timeline.events)
        ),
    )
    return True


@dataclass(frozen=True, slots=True)
class _StoredEvents:
    connection: sqlite3.Connection
    number: int

    def __iter__(self) -> Iterator[TracedEvent]:
        kinds = {number: kind for number, _, kind in stored_kinds(self.connection, self.number)}
        for kind_number, *values in self.connection.execute(
            "SELECT kind_number, start_ns, duration_ns, exposed_ns, idle_ns, late_ns, device, stream, step, launch_ns,"
            " call, correlation, coalesce(event_scope.name, ''), coalesce(sample.id, ''), repetition_index"
            " FROM traced_event LEFT JOIN event_scope ON event_scope.number = scope_number"
            " LEFT JOIN sample ON sample.number = sample_number WHERE timeline_number = ? ORDER BY sequence",
            (self.number,),
        ):
            yield TracedEvent(kinds[kind_number], *values)


def stored_kinds(
    connection: sqlite3.Connection, timeline_number: int
) -> Iterator[tuple[int, str, EventKind]]:
    """Number, id and record of the kinds of a timeline's events."""
    names = [field.name for field in fields(EventKind)]
    columns = ", ".join(f"event_kind.{name}" for name in KIND_COLUMNS)
    for number, kind_id, *values in connection.execute(
        f"SELECT number, id, {columns} FROM event_kind"
        " WHERE number IN (SELECT kind_number FROM traced_event WHERE timeline_number = ?)",
        (timeline_number,),
    ):
        yield number, kind_id, EventKind(**dict(zip(names, values, strict=True)))


def stored_timelines(
    connection: sqlite3.Connection, where: str = "1", parameters: Iterable[Any] = ()
) -> Iterator[tuple[str, Timeline, str | None]]:
    """The id, content and problem (or None) of every timeline; `where` is trusted SQL about `timeline`.

    Memory does not grow with the timelines.
    """
    found: list[tuple[int, str, str]] = connection.execute(
        f"SELECT number, id, trace_id FROM timeline WHERE {where} ORDER BY id", tuple(parameters)
    ).fetchall()
    for number, timeline_id, trace_id in found:
        steps = connection.execute(
            "SELECT name, start_ns, duration_ns FROM traced_step WHERE timeline_number = ? ORDER BY step",
            (number,),
        )
        timeline = Timeline(trace_id, tuple(map(TracedStep._make, steps)), _StoredEvents(connection, number))
        yield timeline_id, timeline, _problem(connection, number, timeline_id, timeline)


def _problem(connection: sqlite3.Connection, number: int, timeline_id: str, timeline: Timeline) -> str | None:
    for _, kind_id, kind in stored_kinds(connection, number):
        if (problem := id_problem(kind_id, kind.id)) is not None:
            return f"event_kind {kind_id}: {problem}"
    for table, column in (("traced_event", "sequence"), ("traced_step", "step")):
        last, count = connection.execute(
            f"SELECT max({column}), count(*) FROM {table} WHERE timeline_number = ?", (number,)
        ).fetchone()
        if count and last != count - 1:
            return f"rows of {table} are not numbered without gaps"
    return id_problem(timeline_id, timeline.id)
