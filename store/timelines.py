"""Events of traces: writing, reading and verifying their rows one at a time."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import repeat
from typing import Any

from kernelcast.store.rows import Numbers, id_problem, insert
from kernelcast.store.runs import (
    EVENTS_AT_ONCE,
    KIND_COLUMNS,
    Columns,
    EventColumns,
    EventKind,
    HostTime,
    LostCollective,
    MatchedCollective,
    StreamWait,
    Timeline,
    TimelineDigest,
    TraceClock,
    TracedEvent,
    TracedStep,
    batches,
)

# Rows that are tuples, by table.
_TUPLES: Mapping[str, Any] = {
    "trace_clock": TraceClock,
    "matched_collective": MatchedCollective,
    "lost_collective": LostCollective,
    "stream_wait": StreamWait,
    "host_time": HostTime,
}

_KIND_FIELDS = tuple(field.name for field in fields(EventKind))
_PRELIMINARY = "0" * 32


def write_timeline(
    connection: sqlite3.Connection,
    timeline: Timeline,
    sample_ids: Sequence[str] = (),
    *,
    timeline_id: str = "",
) -> bool:
    """Add a timeline of a stored trace and stored samples, in the caller's transaction; returns False if it exists.

    `sample_ids` are the ids of `timeline.samples`. Without a `timeline_id` the id, which digests the events, is known
    after the last one: they are written under a preliminary id, and withdrawn if the timeline exists.
    """
    connection.execute("SAVEPOINT timeline")
    number = insert(
        connection, "timeline", {"id": timeline_id or _PRELIMINARY, "trace_id": timeline.trace_id}
    )
    is_new = number is not None
    if number is not None:
        digest = TimelineDigest(timeline)
        _write_parts(connection, number, timeline)
        _write_events(connection, number, timeline.events, sample_ids, digest)
        if not timeline_id:
            named = connection.execute(
                "UPDATE OR IGNORE timeline SET id = ? WHERE number = ?", (digest.id, number)
            )
            is_new = named.rowcount == 1
    if not is_new:
        connection.execute("ROLLBACK TO timeline")
    connection.execute("RELEASE timeline")
    return is_new


def _write_parts(connection: sqlite3.Connection, number: int, timeline: Timeline) -> None:
    """Steps, clock, collectives, waits and times of the host."""
    connection.executemany(
        "INSERT INTO traced_step (timeline_number, step, name, start_ns, duration_ns) VALUES (?, ?, ?, ?, ?)",
        ((number, index, *step) for index, step in enumerate(timeline.steps)),
    )
    clocks = () if timeline.clock is None else (timeline.clock,)
    for table, found in zip(
        _TUPLES, (clocks, timeline.collectives, timeline.lost, timeline.waits, timeline.host), strict=True
    ):
        names = _TUPLES[table]._fields
        connection.executemany(
            f"INSERT INTO {table} (timeline_number, {', '.join(names)}) VALUES (?{', ?' * len(names)})",
            ((number, *row) for row in found),
        )


def _write_events(
    connection: sqlite3.Connection,
    number: int,
    events: Iterable[TracedEvent],
    sample_ids: Sequence[str],
    digest: TimelineDigest,
) -> None:
    """The events, in one pass with their digest."""
    kinds, scopes = Numbers(connection, "event_kind", "id"), Numbers(connection, "event_scope", "name")
    samples = Numbers(connection, "sample", "id")
    kind_numbers: dict[str, int | None] = {}
    sample_numbers: dict[str, int | None] = {"": None}
    sample_numbers |= {str(place): samples.find(sample_id) for place, sample_id in enumerate(sample_ids)}
    scope_numbers: dict[str, int | None] = {"": None}
    names = "kind_number, start_ns, duration_ns, exposed_ns, idle_ns, late_ns, device, stream, step, launch_ns, call"
    statement = (
        f"INSERT INTO traced_event (timeline_number, sequence, {names}, correlation, scope_number, sample_number,"
        f" repetition_index) VALUES ({', '.join('?' * 17)})"
    )
    done = 0
    for columns in batches(events):
        listed, *values, scope, sample_id, repetition = columns
        ids = digest.add(columns)
        for kind_id, kind in dict(zip(ids, listed, strict=True)).items():
            if kind_id not in kind_numbers:
                row = {name.rstrip("_"): getattr(kind, name) for name in _KIND_FIELDS}
                kind_numbers[kind_id] = kinds.find(kind_id, {"id": kind_id, **row})
        scope_numbers |= {
            name: scopes.find(name, {"name": name})
            for name in dict.fromkeys(scope)
            if name not in scope_numbers
        }
        sample_numbers |= {one: samples.find(one) for one in set(sample_id) if one not in sample_numbers}
        rows = zip(
            repeat(number),
            range(done, done + len(ids)),
            map(kind_numbers.__getitem__, ids),
            *values,
            map(scope_numbers.__getitem__, scope),
            map(sample_numbers.__getitem__, sample_id),
            repetition,
            strict=False,
        )
        connection.executemany(statement, rows)
        done += len(ids)


@dataclass(frozen=True, slots=True)
class _StoredEvents(EventColumns):
    connection: sqlite3.Connection
    number: int

    def batches(self) -> Iterator[Columns]:
        kinds = {number: kind for number, _, kind in stored_kinds(self.connection, self.number)}
        found = self.connection.execute(
            "SELECT kind_number, start_ns, duration_ns, exposed_ns, idle_ns, late_ns, device, stream, step, launch_ns,"
            " call, correlation, coalesce(event_scope.name, ''), coalesce(sample.id, ''), repetition_index"
            " FROM traced_event LEFT JOIN event_scope ON event_scope.number = scope_number"
            " LEFT JOIN sample ON sample.number = sample_number WHERE timeline_number = ? ORDER BY sequence",
            (self.number,),
        )
        while part := found.fetchmany(EVENTS_AT_ONCE):
            numbers, *columns = zip(*part, strict=True)
            yield [[kinds[number] for number in numbers], *columns]


def stored_kinds(
    connection: sqlite3.Connection, timeline_number: int
) -> Iterator[tuple[int, str, EventKind]]:
    """Number, id and record of the kinds of a timeline's events."""
    columns = ", ".join(f"event_kind.{name}" for name in KIND_COLUMNS)
    for number, kind_id, *values in connection.execute(
        f"SELECT number, id, {columns} FROM event_kind"
        " WHERE number IN (SELECT kind_number FROM traced_event WHERE timeline_number = ?)",
        (timeline_number,),
    ):
        yield number, kind_id, EventKind(**dict(zip(_KIND_FIELDS, values, strict=True)))


def stored_timelines(
    connection: sqlite3.Connection, where: str = "1", parameters: Iterable[Any] = ()
) -> Iterator[tuple[str, Timeline, str | None]]:
    """Id, content and problem (or None) of every timeline, one at a time; `where` is trusted SQL about `timeline`."""
    found: list[tuple[int, str, str]] = connection.execute(
        f"SELECT number, id, trace_id FROM timeline WHERE {where} ORDER BY id", tuple(parameters)
    ).fetchall()
    for number, timeline_id, trace_id in found:
        steps = connection.execute(
            "SELECT name, start_ns, duration_ns FROM traced_step WHERE timeline_number = ? ORDER BY step",
            (number,),
        )
        clocks, *parts = (
            connection.execute(
                f"SELECT {', '.join(kind._fields)} FROM {table} WHERE timeline_number = ?", (number,)
            ).fetchall()
            for table, kind in _TUPLES.items()
        )
        timeline = Timeline(
            trace_id,
            tuple(map(TracedStep._make, steps)),
            _StoredEvents(connection, number),
            TraceClock(*clocks[0]) if clocks else None,
            *parts,
        )
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
