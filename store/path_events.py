"""The events of the step with the median time, read for its critical path."""

import sqlite3
from collections import defaultdict
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from kernelcast.store.critical_path import (
    DELAY,
    FIRST,
    NOT_RECORDED,
    NOTHING,
    Part,
    PathEvents,
    critical_path,
)
from kernelcast.store.trace_sums import columns_of, groups_of

_MOST_EVENTS = 1 << 32  # of a timeline
_TYPICAL = """
    SELECT step_index, sum(compute_ns + exposed_communication_ns + memory_ns + idle_ns) AS time_ns,
        max(name LIKE '% (cut)')
    FROM step_sum JOIN traced_step ON traced_step.timeline_number = step_sum.timeline_number AND step = step_index
    GROUP BY step_index ORDER BY step_index
"""
_TIMELINES = """
    SELECT timeline.number, coalesce(trace.rank, 0), coalesce(clock.start_ns, 0), 1 + coalesce(clock.drift, 0)
    FROM timeline JOIN trace ON trace.id = trace_id LEFT JOIN trace_clock AS clock ON timeline_number = timeline.number
    WHERE run_id = ? ORDER BY timeline.number
"""
_EVENTS = """
    SELECT event.sequence, kind_number, scope_number, device, stream, start_ns, duration_ns, launch_ns,
        collective_number,
        (SELECT awaited.sequence FROM stream_wait AS wait JOIN traced_event AS awaited
            ON awaited.timeline_number = wait.timeline_number AND awaited.sequence = awaited_sequence
            WHERE wait.timeline_number = event.timeline_number AND wait.sequence = event.sequence
            ORDER BY awaited.start_ns + awaited.duration_ns DESC LIMIT 1) AS awaited,
        step IS :step AS is_own
    FROM traced_event AS event INDEXED BY sqlite_autoindex_traced_event_1 LEFT JOIN matched_collective AS matched
        ON matched.timeline_number = event.timeline_number AND matched.sequence = event.sequence
    WHERE event.timeline_number = :timeline
        AND (step IS :step OR step = :step - 1 OR step IS NULL AND launch_ns IS NULL)
"""
_KINDS = """
    SELECT number, class, iif(class = 'communication' OR operator = '',
            coalesce(nullif(iif(class = 'communication', collective, ''), ''), nullif(host_operator, ''), name),
            rtrim(operator || ' ' || role)) || iif(class = 'compute' AND direction <> '', ' (' || direction || ')', ''),
        name LIKE '%DtoH%Pageable%', iif(direction IN ('', 'forward', 'once'), '', direction),
        iif(direction = '', class, direction), category = 'cpu_op'
    FROM event_kind
"""
_SCOPES = "SELECT number, substr(name, 1, instr(name || ' / ', ' / ') - 1) FROM event_scope"
_WAITS = """
    SELECT coalesce(trace.rank, 0), total_ns FROM host_time
    JOIN timeline ON timeline.number = timeline_number JOIN trace ON trace.id = trace_id
    WHERE run_id = :run AND kind = 'runtime' AND (name LIKE '%Synchronize%' OR name LIKE '%Memcpy%')
        AND calls = 1 AND (step IS :step OR step = :step - 1)
    ORDER BY host_time.rowid
"""
_BEGINS = """
    SELECT coalesce(trace.rank, 0), coalesce(clock.start_ns, 0) + traced_step.start_ns * (1 + coalesce(drift, 0))
    FROM traced_step JOIN timeline ON timeline.number = traced_step.timeline_number JOIN trace ON trace.id = trace_id
    LEFT JOIN trace_clock AS clock ON clock.timeline_number = traced_step.timeline_number
    WHERE run_id = :run AND traced_step.step = :step
"""


def add_critical_path(connection: sqlite3.Connection, run_id: str, *, top: int) -> None:
    """Make the temporary table `path_part` of the step with the median time: empty for a CPU, whose calls nest.

    Without marked steps it is of the whole trace; the first step, whose start was not recorded, and
    a step that the recording cuts do not count.
    """
    columns = "step_index, class, part, path_ns, saved_ns, share"
    connection.execute(f"CREATE TEMP TABLE path_part ({columns})")
    times = connection.execute(_TYPICAL).fetchall()
    whole = [row for row in times if not row[2]] or times
    usual = [row for row in whole if row[0] > 0] or whole
    middle = median_low(time_ns for _, time_ns, _ in usual) if usual else None
    step = next((step for step, time_ns, _ in usual if time_ns == middle), None)
    given = {"run": run_id, "step": step}
    calls_ns = defaultdict[int, list[float]](list)
    for rank, duration_ns in connection.execute(_WAITS, given):
        calls_ns[rank].append(duration_ns)
    events, parts = _path_events(connection, run_id, step)
    found = critical_path(events, parts, calls_ns, dict(connection.execute(_BEGINS, given)), top=top)
    connection.executemany(
        "INSERT INTO path_part VALUES (?, ?, ?, ?, ?, ?)",
        ((step, *one.part, *one[1:]) for one in found),
    )


def _path_events(
    connection: sqlite3.Connection, run_id: str, step: int | None
) -> tuple[PathEvents, list[Part]]:
    """The events of a step and of the one before it, on the clock of the run, and the parts that they name."""
    kinds = {number: values for number, *values in connection.execute(_KINDS)}
    scopes: dict[int, str] = dict(connection.execute(_SCOPES))
    parts = {DELAY: 0, FIRST: 1}
    found, known_keys = list[PathEvents](), list[NDArray[np.intp]]()
    for timeline, rank, from_ns, rate in connection.execute(_TIMELINES, (run_id,)).fetchall():
        rows = columns_of(connection, _EVENTS, {"timeline": timeline, "step": step})
        scope = np.nan_to_num(rows["scope_number"], nan=-1.0)
        pairs, place = np.unique(np.stack([rows["kind_number"], scope]), axis=1, return_inverse=True)
        # Of every kind and scope: part, launcher, whether it blocks the host and whether it is a call of a CPU.
        about = np.zeros((4, pairs.shape[1]), dtype=np.intp)
        for number, (kind, scope_number) in enumerate(pairs.T.astype(int).tolist()):
            class_, name, blocks, late_pass, usual, is_call = kinds[kind]
            launcher = "host", f"launching {late_pass or scopes.get(scope_number) or usual}"
            part, launching = (parts.setdefault(one, len(parts)) for one in ((class_, name), launcher))
            about[:, number] = part, launching, blocks, is_call
        part, launching, blocks, is_call = about[:, place.ravel()]
        start_ns = rows["start_ns"]
        times = start_ns, start_ns + rows["duration_ns"], np.minimum(rows["launch_ns"], start_ns)
        start_ns, end_ns, launch_ns = (np.rint(from_ns + time_ns * rate) for time_ns in times)
        order, borders = groups_of(rows["device"], rows["stream"])
        stream = np.empty(len(order), dtype=np.intp)
        stream[order] = np.searchsorted(borders, np.arange(len(order)), side="right")
        collective = np.nan_to_num(rows["collective_number"], nan=-1.0).astype(np.intp)
        is_known = connection.execute(
            "SELECT 1 FROM stream_wait WHERE timeline_number = ?", (timeline,)
        ).fetchone()
        # Positions are known when the events of all ranks are: until then, keys.
        keys = timeline * _MOST_EVENTS + rows["sequence"]
        awaited = np.where(np.isnan(rows["awaited"]), NOTHING, timeline * _MOST_EVENTS + rows["awaited"])
        awaited = awaited.astype(np.intp) if is_known else np.full(len(order), NOT_RECORDED)
        known_keys.append(keys[is_call == 0].astype(np.intp))
        columns = (np.full(len(order), rank), stream, start_ns, end_ns, launch_ns, part, collective,
                   rows["is_own"] == 1, blocks == 1, launching, awaited)  # fmt: skip
        found.append(PathEvents._make(column[is_call == 0] for column in columns))
    joined = PathEvents._make(map(np.concatenate, zip(*found, strict=True)))
    order = np.lexsort((joined.end_ns, joined.start_ns))
    joined = PathEvents._make(column[order] for column in joined)
    keys = np.concatenate(known_keys)[order]
    by_key = np.argsort(keys)
    place = (
        by_key[np.searchsorted(keys[by_key], joined.awaited).clip(max=len(keys) - 1)] if len(keys) else by_key
    )
    is_there = (joined.awaited >= 0) & (keys[place] == joined.awaited)
    return joined._replace(awaited=np.where(is_there, place, np.minimum(joined.awaited, NOTHING))), list(
        parts
    )
