"""Exporting a database as a partitioned Parquet dataset, for more data than fits one file (extra `parquet`).

OUT/sample/operator=NAME/part-*.parquet    one row per sample, with its run's hardware and software
OUT/kernel/operator=NAME/part-*.parquet    one row per kernel, with its sample's id and workload
OUT/sample_flag.parquet                    one row per flag of a sample, with its sample's id
OUT/trace_event/run_id=ID/TRACE.parquet    one row per event of a trace, as in the view trace_event
OUT/lost_part.parquet                     one row per part of a collective that the profiler lost
OUT/hardware.parquet, software.parquet, ...   one file per smaller table, as in schema.sql
OUT/traces.sql                             the views of traces, for DuckDB
"""

import json
import re
import sqlite3
from collections.abc import Collection
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from kernelcast.runtime.errors import DataError, system_errors
from kernelcast.runtime.output_file import unfinished_beside
from kernelcast.store.connection import foreign_database
from kernelcast.store.copying import Condition
from kernelcast.store.database_file import DEFAULT_MAX_SIZE_BYTES
from kernelcast.store.export import Subset, check_operators
from kernelcast.store.rows import CONTENT_TABLES
from kernelcast.store.sqlite_errors import reading

_SMALL_TABLES = ("operator", "device_peak", *(table for table in CONTENT_TABLES if table != "sample"))
_TYPES = {
    "TEXT": pa.string(),
    "REAL": pa.float64(),
    "INTEGER": pa.int64(),
    "": pa.float64(),  # an expression of a view
}
_ROWS_AT_ONCE = 100_000

_SAMPLE_SQL = (
    "SELECT {columns}, run.fabric_id, run.software_id FROM sample JOIN run ON run.id = sample.run_id"
)
_FLAG_SQL = (
    "SELECT sample.id, flag, detail FROM sample_flag JOIN sample ON sample.number = sample_flag.sample_number"
    " WHERE {where} ORDER BY sample.id, flag"
)
_FLAG_SCHEMA = pa.schema([(name, pa.string()) for name in ("sample_id", "flag", "detail")])
_KERNEL_SQL = (
    "SELECT sample.role, sample.direction, sample.dtype, sample.vector, run.software_id, sample.id,"
    " kernel.repetition_index, kernel.sequence, kernel_name.name, kernel.start_us, kernel.duration_us,"
    " kernel.stream"
    " FROM sample JOIN run ON run.id = sample.run_id"
    " CROSS JOIN kernel ON kernel.sample_number = sample.number"
    " JOIN kernel_name ON kernel_name.number = kernel.name_number"
)
_KERNEL_SCHEMA = pa.schema(
    [
        *(
            (name, pa.string())
            for name in ("role", "direction", "dtype", "vector", "software_id", "sample_id")
        ),
        ("repetition_index", pa.int32()),
        ("sequence", pa.int32()),
        ("name", pa.string()),
        ("start_us", pa.float64()),
        ("duration_us", pa.float64()),
        ("stream", pa.int64()),
    ]
)


_TRACE_EVENTS, _LOST, _TRACE_VIEWS = "trace_event", "lost_part", "traces.sql"
_VIEWS = (
    "step_time", "kernel_time", "host_operator_time", "product_rate", "collective_rate", "collective_match",
    "rank_arrival", "stream_idle", "copy_rate", "launch_delay",
)  # fmt: skip
# Other tables that the views read.
_TABLES = ("run", "hardware", "device_peak", "trace", _LOST)
_HEADER = """\
-- The views of schema.sql on the Parquet files of this folder, for DuckDB: duckdb -init traces.sql, from here.
-- Over several exports in one folder: SET VARIABLE exports = 'FOLDER/*'; then .read this file.
SET VARIABLE exports = coalesce(getvariable('exports'), '.');
CREATE OR REPLACE MACRO iif(condition, one, other) AS CASE WHEN condition THEN one ELSE other END;
"""


def write_view(connection: sqlite3.Connection, view: str, file: Path, *, texts: Collection[str]) -> int:
    """Write all rows of a view; `texts` are its expressions that are texts. Returns the number of rows."""
    schema = pa.schema(
        [(one.name, pa.string()) if one.name in texts else one for one in _schema(connection, view)]
    )
    return write_rows(file, connection.execute(f"SELECT * FROM {view} ORDER BY sample_id"), schema)


def export_parquet(
    source: str | Path, target: str | Path, subset: Subset, *, max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES
) -> dict[str, int]:
    """Write a part of `source` as Parquet files in the new folder `target`; returns rows per table.

    The folder appears only when it is complete; memory does not grow with the database. UsageError for an
    unknown operator; DataError where `target` exists or cannot be written, or `source` is no sound database.
    """
    source, target = Path(source), Path(target)
    if target.exists():
        raise DataError(f"{target}: exists already, expected the name of a new folder")
    if not target.parent.is_dir():
        raise DataError(f"{target}: its folder does not exist")
    with system_errors(str(target), "cannot be written"), unfinished_beside(target) as unfinished:
        with reading(source), foreign_database(source, max_size_bytes=max_size_bytes) as connection:
            check_operators(connection, subset)
            unfinished.mkdir()
            rows = _write_all(connection, unfinished, subset)
        unfinished.rename(target)
    return rows


def _write_all(connection: sqlite3.Connection, folder: Path, subset: Subset) -> dict[str, int]:
    selection = subset.selection()
    rows = {}
    for table in _SMALL_TABLES:
        where, parameters = selection.of(table)
        schema = _schema(connection, table)
        cursor = connection.execute(f"SELECT * FROM {table} WHERE {where} ORDER BY 1", parameters)
        rows[table] = write_rows(folder / f"{table}.parquet", cursor, schema)
    columns = [field for field in _schema(connection, "sample") if field.name not in ("number", "operator")]
    sample_schema = pa.schema([*columns, ("fabric_id", pa.string()), ("software_id", pa.string())])
    sample_sql = _SAMPLE_SQL.format(columns=", ".join(f"sample.{field.name}" for field in columns))
    condition = subset.sample_condition()
    where, parameters = condition
    flags = connection.execute(_FLAG_SQL.format(where=where), parameters)
    rows["sample_flag"] = write_rows(folder / "sample_flag.parquet", flags, _FLAG_SCHEMA)
    rows["sample"] = _write_partitions(connection, folder / "sample", sample_sql, condition, sample_schema)
    rows["kernel"] = _write_partitions(connection, folder / "kernel", _KERNEL_SQL, condition, _KERNEL_SCHEMA)
    rows["trace_event"] = _write_trace_events(connection, folder, selection.of("timeline"))
    return rows


def _schema(connection: sqlite3.Connection, table: str) -> pa.Schema:
    columns = connection.execute("SELECT name, type FROM pragma_table_info(?)", (table,))
    return pa.schema([(name, _TYPES[kind]) for name, kind in columns])


def _write_partitions(
    connection: sqlite3.Connection, folder: Path, sql: str, condition: Condition, schema: pa.Schema
) -> int:
    """Write a file per hardware and operator, in folders named by them; returns the number of rows."""
    where, parameters = condition
    partitions = connection.execute(
        "SELECT DISTINCT run.compute_id, sample.operator FROM sample JOIN run ON run.id = sample.run_id"
        f" WHERE {where} ORDER BY 1, 2",
        parameters,
    ).fetchall()
    folder.mkdir()
    written = 0
    for compute_id, operator in partitions:
        # Quoted: names in an untrusted database must not lead out of the folder.
        part = folder / f"compute_id={quote(compute_id, safe='')}" / f"operator={quote(operator, safe='')}"
        part.mkdir(parents=True)
        cursor = connection.execute(
            f"{sql} WHERE {where} AND run.compute_id = ? AND sample.operator = ?",
            (*parameters, compute_id, operator),
        )
        written += write_rows(part / "part-0.parquet", cursor, schema)
    return written


def _write_trace_events(connection: sqlite3.Connection, folder: Path, condition: Condition) -> int:
    """Write the events of the timelines that match `condition`, and their views; returns the number of events."""
    where, parameters = condition
    traces = connection.execute(
        "SELECT DISTINCT trace.id, trace.run_id FROM timeline JOIN trace ON trace.id = timeline.trace_id"
        f" WHERE timeline.number IN (SELECT number FROM timeline WHERE {where}) ORDER BY 1",
        parameters,
    ).fetchall()
    schema = _schema(connection, _TRACE_EVENTS)
    written = 0
    for trace_id, run_id in traces:
        part = folder / _TRACE_EVENTS / f"run_id={quote(run_id, safe='')}"
        part.mkdir(parents=True, exist_ok=True)
        cursor = connection.execute(
            "SELECT * FROM trace_event WHERE trace_id = ? ORDER BY sequence", (trace_id,)
        )
        written += write_rows(part / f"{quote(trace_id, safe='')}.parquet", cursor, schema)
    if traces:
        cursor = connection.execute(
            f"SELECT * FROM {_LOST} WHERE trace_id IN (SELECT value FROM json_each(?)) ORDER BY trace_id, 2",
            (json.dumps([trace_id for trace_id, _ in traces]),),
        )
        write_rows(folder / f"{_LOST}.parquet", cursor, _schema(connection, _LOST))
        (folder / _TRACE_VIEWS).write_text(_view_definitions(connection), encoding="utf-8")
    return written


def write_rows(file: Path, cursor: sqlite3.Cursor, schema: pa.Schema) -> int:
    """Write the rows of a cursor in batches; returns their number."""
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


def _view_definitions(connection: sqlite3.Connection) -> str:
    statements = [_HEADER + _over(_TRACE_EVENTS, f"{_TRACE_EVENTS}/*/*.parquet")]
    statements += [_over(table, f"{table}.parquet") for table in _TABLES]
    for view in _VIEWS:
        (sql,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (view,)).fetchone()
        statements.append(re.sub(r"^CREATE VIEW", "CREATE OR REPLACE VIEW", sql) + ";")
    return "\n".join(statements) + "\n"


def _over(table: str, files: str) -> str:
    # Several exports may hold the same run, which counts once. A trace has the same file in all of them.
    distinct = "" if table == _TRACE_EVENTS else "DISTINCT "
    read = f"read_parquet(getvariable('exports') || '/{files}', hive_partitioning = false)"
    return f"CREATE OR REPLACE VIEW {table} AS SELECT {distinct}* FROM {read};"
