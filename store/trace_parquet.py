"""Traces as Parquet files, one per rank, and their views as SQL for DuckDB: the same questions over many databases."""

import re
import sqlite3
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from kernelcast.store.copying import Condition

EVENTS, QUESTIONS = "trace_event", "traces.sql"
_ROWS_AT_ONCE = 100_000
_VIEWS = (
    "step_time",
    "kernel_time",
    "host_operator_time",
    "product_rate",
    "collective_rate",
    "rank_time",
    "stream_idle",
)
_TEXTS = (
    "step", "name", "class", "category", "host_operator", "shapes", "scope", "direction", "operator", "role", "dtype",
    "variant", "vector", "reason", "collective", "group_ranks", "trace_id", "run_id",
)  # fmt: skip
# What the views need beside the events; each is a file of its own.
_TABLES = ("run", "hardware", "device_peak", "trace")
_HEADER = """\
-- The views of schema.sql on the Parquet files of this folder, for DuckDB: duckdb -init traces.sql, from here.
-- Over several exports, beside each other in one folder: SET VARIABLE exports = 'FOLDER/*'; then .read this file.
SET VARIABLE exports = coalesce(getvariable('exports'), '.');
CREATE OR REPLACE MACRO iif(condition, one, other) AS CASE WHEN condition THEN one ELSE other END;
"""


def write_trace_events(connection: sqlite3.Connection, folder: Path, condition: Condition) -> int:
    """Write every event of the timelines for which `condition` holds, and `traces.sql`; answers the events."""
    where, parameters = condition
    traces = connection.execute(
        "SELECT DISTINCT trace.id, trace.run_id FROM timeline JOIN trace ON trace.id = timeline.trace_id"
        f" WHERE timeline.number IN (SELECT number FROM timeline WHERE {where}) ORDER BY 1",
        parameters,
    ).fetchall()
    columns = [name for (name,) in connection.execute("SELECT name FROM pragma_table_info('trace_event')")]
    schema = pa.schema([(name, _type_of(name)) for name in columns])
    written = 0
    for trace_id, run_id in traces:
        part = folder / EVENTS / f"run_id={quote(run_id, safe='')}"
        part.mkdir(parents=True, exist_ok=True)
        cursor = connection.execute(
            "SELECT * FROM trace_event WHERE trace_id = ? ORDER BY sequence", (trace_id,)
        )
        written += write_rows(part / f"{quote(trace_id, safe='')}.parquet", cursor, schema)
    if traces:
        (folder / QUESTIONS).write_text(_questions(connection), encoding="utf-8")
    return written


def write_rows(file: Path, cursor: sqlite3.Cursor, schema: pa.Schema) -> int:
    """Write what a statement answers, some rows at a time; answers how many."""
    written = 0
    with pq.ParquetWriter(file, schema) as writer:
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            arrays = [
                pa.array(column, field.type)
                for column, field in zip(zip(*rows, strict=True), schema, strict=True)
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
            written += len(rows)
    return written


def _type_of(column: str) -> pa.DataType:
    if column in _TEXTS:
        return pa.string()
    return pa.float64() if column.endswith("_us") else pa.int64()


def _questions(connection: sqlite3.Connection) -> str:
    statements = [_HEADER + _over(EVENTS, f"{EVENTS}/*/*.parquet")]
    statements += [_over(table, f"{table}.parquet") for table in _TABLES]
    for view in _VIEWS:
        (sql,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (view,)).fetchone()
        statements.append(re.sub(r"^CREATE VIEW", "CREATE OR REPLACE VIEW", sql) + ";")
    return "\n".join(statements) + "\n"


def _over(table: str, files: str) -> str:
    # A run that several exports hold is one; events are of one trace each, whose file is the same in all.
    distinct = "" if table == EVENTS else "DISTINCT "
    read = f"read_parquet(getvariable('exports') || '/{files}', hive_partitioning = false)"
    return f"CREATE OR REPLACE VIEW {table} AS SELECT {distinct}* FROM {read};"
