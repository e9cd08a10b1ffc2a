"""Sums over the events of a run in temporary tables, made in one pass: a report asks them, and not a view per table."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.store.database import Database
from kernelcast.store.shape_costs import call_costs
from kernelcast.store.sqlite_errors import reported

_Floats = NDArray[np.float64]

_EVENTS = """
    SELECT kind_number, start_ns, duration_ns, exposed_ns, idle_ns, late_ns, device, stream, step, launch_ns,
        scope_number, call
    FROM traced_event INDEXED BY sqlite_autoindex_traced_event_1 WHERE timeline_number = ? ORDER BY sequence
"""
# Kinds of the same call share a number, that of one of them. Calls without shapes have none; nor has an operator, which
# has samples, other than matrix products. Classes: 0 compute, 1 communication, 2 memory.
# Passes: 0 forward, 1 recomputation, 2 backward, 3 update, 4 communication, 5 unknown.
_KINDS = """
    SELECT number, iif(m IS NOT NULL OR (operator = '' AND shapes <> '' AND class = 'compute'),
            min(number) OVER (PARTITION BY host_operator, shapes, direction, dtype, m IS NULL), NULL) AS same_call,
        CASE class WHEN 'compute' THEN 0 WHEN 'communication' THEN 1 ELSE 2 END AS class,
        CASE
            WHEN class = 'communication' THEN 4
            WHEN direction = 'recomputation' THEN 1
            WHEN direction NOT IN ('', 'forward', 'once') THEN 2
            ELSE iif(direction = '', 5, 0)
        END AS pass
    FROM event_kind ORDER BY number
"""
_TABLES = {
    "event_sum": "kind_number, scope_number, launches, duration_ns, exposed_ns, min_ns",
    "pass_sum": "pass, launches, duration_ns, exposed_ns",
    "call_sum": "kind_number, calls, duration_ns",
    "step_sum": "step_index, compute_ns, exposed_communication_ns, memory_ns, idle_ns, idle_host_ns, "
    "idle_other_stream_ns, idle_dependency_ns, idle_unknown_ns, communication_ns, events",
    "launch_sum": "step_index, launches, short, delay_ns, starved, late_ns, from_ns, to_ns",
    "stream_sum": "device, stream, events, duration_ns, idle_ns, host_ns, waiting_ns, unknown_ns",
}
"""Columns of each table after the trace, its rank and its timeline. Sums are named as in the views of schema.sql."""
_CALLED = """
    SELECT DISTINCT kind_number, host_operator, shapes, dtype, category
    FROM call_sum JOIN event_kind ON number = kind_number WHERE m IS NULL
"""
_KEPT = ("collective_match", "rank_arrival")
"""Views that are read several times: temporary tables of the same names hold their rows."""
_STREAM = 1 << 20  # streams are told by their lowest 20 bits, as in the view step_time


@contextmanager
def summed_events(database: Database, run_id: str) -> Iterator[None]:
    """Keep the temporary tables of a run for the block; DataError where the database is damaged."""
    connection = database.connection
    with reported(database.path):
        timelines = connection.execute(
            "SELECT trace.id, rank, number FROM timeline JOIN trace ON trace.id = trace_id WHERE run_id = ?",
            (run_id,),
        ).fetchall()
        try:
            for name, columns in _TABLES.items():
                connection.execute(f"CREATE TEMP TABLE {name} (trace_id, rank, timeline_number, {columns})")
            for timeline in timelines:
                for name, sums in _sums(_events(connection, timeline[2])).items():
                    # SQLite stores NaN as NULL.
                    marks = ", ".join("?" * (len(timeline) + sums.shape[1]))
                    rows = ((*timeline, *row) for row in sums.tolist())
                    connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
            called = {number: call for number, *call in connection.execute(_CALLED)}
            connection.execute("CREATE TEMP TABLE call_cost (kind_number, workload, flops, moved_bytes)")
            connection.executemany("INSERT INTO call_cost VALUES (?, ?, ?, ?)", call_costs(called))
            is_matched = connection.execute("SELECT 1 FROM matched_collective LIMIT 1").fetchone()
            for name in _KEPT:
                some = f"SELECT * FROM main.{name} WHERE run_id = ?" + ("" if is_matched else " LIMIT 0")
                connection.execute(f"CREATE TEMP TABLE {name} AS {some}", (run_id,))
            yield
        finally:
            for name in (*_TABLES, "call_cost", "path_part", *_KEPT):
                connection.execute(f"DROP TABLE IF EXISTS temp.{name}")


def _events(connection: sqlite3.Connection, timeline: int) -> dict[str, _Floats]:
    """Columns of a timeline's events in order, float64 [events] each; NaN for NULL."""
    events, kinds = columns_of(connection, _EVENTS, (timeline,)), columns_of(connection, _KINDS)
    row = np.searchsorted(kinds["number"], events["kind_number"])
    return events | {name: kinds[name][row] for name in ("same_call", "class", "pass")}


def columns_of(connection: sqlite3.Connection, sql: str, given: Any = ()) -> dict[str, _Floats]:
    """The columns of a query by name, float64 [rows] each; NaN for NULL."""
    names = [column[0] for column in connection.execute(f"SELECT * FROM ({sql}) LIMIT 0", given).description]
    # Infinity for NULL, which numpy does not read: quicker than a list of rows.
    known = ", ".join(f"ifnull({name}, 9e999)" for name in names)
    rows = connection.execute(f"SELECT {known} FROM ({sql})", given)
    values = np.fromiter(chain.from_iterable(rows), dtype=np.float64)
    values[np.isinf(values)] = np.nan
    return dict(zip(names, values.reshape(-1, len(names)).T.copy(), strict=True))


def _sums(events: dict[str, _Floats]) -> dict[str, _Floats]:
    """Rows of the tables by their names, float64 [rows, columns of `_TABLES`]."""
    start, duration, exposed = events["start_ns"], events["duration_ns"], events["exposed_ns"]
    idle, late, launch = events["idle_ns"], events["late_ns"], events["launch_ns"]
    device, stream, step = events["device"], events["stream"], events["step"]
    compute, communication, memory = (events["class"] == one for one in range(3))
    end, ones, order = start + duration, np.ones(len(start)), np.arange(len(start))
    low, is_launched = stream.astype(np.int64) % _STREAM, ~np.isnan(launch)

    is_other, before = np.zeros(len(start), dtype=bool), np.full(len(start), np.nan)
    for rows in np.split(*groups_of(device)):
        # The latest end of all earlier events, with its stream.
        ended = np.maximum.accumulate(end[rows].astype(np.int64) * _STREAM + low[rows]) % _STREAM
        is_other[rows[1:]] = ended[:-1] != low[rows[1:]]
    for rows in np.split(*groups_of(device, stream)):
        before[rows[1:]] = end[rows[:-1]]
    gap = np.fmax(start - before, 0.0)

    # What the host launches after the last backward pass of a step is the update.
    part, launched = events["pass"].copy(), np.where(is_launched, launch, start)
    for rows in np.split(*groups_of(step)):
        last = launched[rows][part[rows] == 2].max(initial=-np.inf)
        part[rows[(launched[rows] > last) & (last > -np.inf) & (part[rows] != 4)]] = 3

    call = np.where(np.isnan(events["call"]), -1 - order, events["call"])
    calls = _grouped((events["same_call"], call), (np.add, duration), rows=~np.isnan(events["same_call"]))
    return {
        "event_sum": _grouped((events["kind_number"], events["scope_number"]), (np.add, ones), (np.add, duration),
            (np.add, exposed), (np.minimum, duration)),
        "pass_sum": _grouped((part,), (np.add, ones), (np.add, duration), (np.add, exposed)),
        "call_sum": _grouped((calls[:, 0],), (np.add, np.ones(len(calls))), (np.add, calls[:, 2])),
        "step_sum": _grouped((step,), (np.add, exposed * compute), (np.add, exposed * communication),
            (np.add, exposed * memory), (np.add, idle), (np.add, late),
            (np.add, np.where(is_other, idle - late, 0.0)), (np.add, np.where(is_other, 0.0, idle - late)),
            (np.add, np.where(np.isnan(late), idle, 0.0)), (np.add, duration * communication), (np.add, ones)),
        "launch_sum": _grouped((step,), (np.add, ones), (np.add, duration < 5000), (np.add, start - launch),
            (np.add, np.where(np.isnan(late), np.nan, late > 0)), (np.add, late), (np.minimum, launch),
            (np.maximum, end), rows=is_launched),
        "stream_sum": _grouped((device, stream), (np.add, ones), (np.add, duration), (np.add, gap),
            (np.add, np.where(launch > before, gap, 0.0)), (np.add, np.where(launch <= before, gap, 0.0)),
            (np.add, np.where(is_launched, 0.0, gap))),
    }  # fmt: skip


def groups_of(*keys: _Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows sorted by the keys (stable), and where each group after the first begins; NaN is a value."""
    code = np.zeros(len(keys[0]), dtype=np.intp)
    for key in keys:
        number, count = _numbered(key)
        code = code * count + number
    # Numbers of 16 bits are sorted by their digits, in one pass.
    order = np.argsort(code.astype(np.uint16) if code.max(initial=0) < 1 << 16 else code, kind="stable")
    return order, np.flatnonzero(np.diff(code[order])) + 1


def _numbered(key: _Floats) -> tuple[NDArray[np.intp], int]:
    """Whole numbers from 0 in the order of `key`, NaN last, and how many they may be; sorted only if far apart."""
    first, last = np.nanmin(key, initial=0), np.nanmax(key, initial=0)
    if last - first > 4 * len(key):
        distinct, number = np.unique(key, return_inverse=True)
        return number, len(distinct)
    return np.where(np.isnan(key), last - first + 1, key - first).astype(np.intp), int(last - first) + 2


def _grouped(
    keys: tuple[_Floats, ...], *values: tuple[np.ufunc, Any], rows: NDArray[np.bool_] | None = None
) -> _Floats:
    """Keys and folded values of each group of `rows`; as in SQL, NaN counts for nothing, and alone gives NaN."""
    if rows is not None:
        keys = tuple(key[rows] for key in keys)
        values = tuple((fold, value[rows]) for fold, value in values)
    if not len(keys[0]):
        return np.empty((0, len(keys) + len(values)))
    order, others = groups_of(*keys)
    first = np.concatenate([[0], others])
    columns = [key[order[first]] for key in keys]
    for fold, value in values:
        own = value[order].astype(np.float64)
        missing = np.isnan(own)
        if fold is np.add and missing.any():
            known = np.add.reduceat(~missing, first, dtype=np.intp)
            columns.append(np.where(known, np.add.reduceat(np.where(missing, 0.0, own), first), np.nan))
        else:
            columns.append(fold.reduceat(own, first))
    return np.stack(columns, axis=1)
