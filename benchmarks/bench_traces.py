"""How fast traces are read, ingested, exported and queried (SQLite, and DuckDB over Parquet files), in how much memory.

Writes the made-up traces of docs/example_traces.py for this number of ranks and steps, or one trace of copies of a
recorded one, in sequence and with ids of their own. Reading, ingesting and the report run in processes of their own;
printed are seconds of the processor, MB/s of JSON, the peak of the process's memory, and the database's bytes per
event, indexes and samples included. The query finds the slow rank in both databases.
"""

import gzip
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb

from kernelcast.benchmarks.harness import Bench, script, seconds_of
from kernelcast.collector.ingest import ingest_traces
from kernelcast.collector.traces.kineto import read_trace
from kernelcast.docs import example_traces
from kernelcast.store import Database
from kernelcast.store.export import Subset
from kernelcast.store.parquet import export_parquet
from kernelcast.store.trace_report import trace_report, traced_runs

QUESTION = """
    SELECT rank, collectives, times_last, delay_ms, extra_compute_ms FROM rank_arrival ORDER BY delay_ms DESC LIMIT 3
"""


def read(folder: str) -> dict[str, float]:
    """Processor time of reading all traces, one after the other."""
    start = time.process_time()
    for path in Path(folder).glob("*.json"):
        read_trace(path)
    return {"seconds": time.process_time() - start}


def ingest(folder: str, database: str) -> dict[str, float]:
    """Processor time of ingesting them, with the processes that read them."""
    start = sum(os.times()[:4])
    ingest_traces(sorted(Path(folder).glob("*.json")), Path(database))
    return {"seconds": sum(os.times()[:4]) - start}


def report(database: str) -> dict[str, float]:
    """Processor time of the report of the run."""
    start = time.process_time()
    with Database.open(Path(database), read_only=True) as opened:
        trace_report(opened, traced_runs(opened)[0])
    return {"seconds": time.process_time() - start}


def copies(trace: Path, path: Path, count: int) -> Path:
    """Write copies of the complete events of a recorded trace, one after the other, as one trace."""
    document = json.loads(gzip.decompress(trace.read_bytes()))
    events = [event for event in document.pop("traceEvents") if event.get("ph") == "X"]
    span_us = max(event["ts"] + event["dur"] for event in events) - min(event["ts"] for event in events) + 1e3
    with path.open("w") as file:
        file.write(json.dumps(document)[:-1] + ', "traceEvents": [')
        for number in range(count):
            for place, event in enumerate(events):
                arguments = dict(event.get("args", {}))
                for name in {"External id", "correlation", "Sequence number"} & arguments.keys():
                    if isinstance(arguments[name], int) and arguments[name] > 0:
                        arguments[name] += number * 10_000_000
                start_us = round(event["ts"] + number * span_us, 3)
                name = (
                    f"ProfilerStep#{number}{event['name'][13:]}"
                    if event["name"].startswith("ProfilerStep#")
                    else event["name"]
                )
                copy = event | {"name": name, "ts": start_us, "args": arguments}
                file.write(("," if number or place else "") + json.dumps(copy, separators=(",", ":")))
        file.write("]}")
    return path


@script(
    options={
        "--ranks": {"type": int, "default": 100},
        "--steps": {"type": int, "default": 20},
        "--of": {"type": Path, "metavar": "TRACE", "help": "a recorded trace (.json.gz)"},
        "--copies": {"type": int, "default": 42, "help": "copies of it"},
    },
    read=read,
    ingest=ingest,
    report=report,
)
def main(bench: Bench) -> None:
    given = bench.given
    example_traces.STEPS = given.steps
    with tempfile.TemporaryDirectory() as name:
        folder, database = Path(name), Path(name, "traces.db")
        if given.of:
            given.ranks, paths = 1, [copies(given.of, folder / "copies.json", given.copies)]
        else:
            paths = example_traces.write(folder, given.ranks)
        size_mb = sum(path.stat().st_size for path in paths) / 1e6
        print(f"{given.ranks} traces, {size_mb:,.0f} MB of JSON")
        for part, arguments in (("read", {}), ("ingest", {"database": database})):
            found = bench.part(part, folder=folder, **arguments)
            rate = f"{found['seconds']:.1f} s, {size_mb / found['seconds']:.0f} MB/s"
            print(f"{part}: {rate}, peak {found['peak_mb'] * 1.048576:,.0f} MB", flush=True)
        found = bench.part("report", database=database)
        print(f"report: {found['seconds']:.1f} s, peak {found['peak_mb'] * 1.048576:,.0f} MB", flush=True)
        answers: dict[str, Any] = {}
        exported_s = seconds_of(
            lambda: answers.update(rows=export_parquet(database, folder / "out", Subset()))
        )
        events = answers["rows"]["trace_event"]
        print(f"database: {events:,} events, {database.stat().st_size / events:.0f} bytes per event")
        with Database.open(database, read_only=True) as opened:
            sqlite_s = seconds_of(lambda: answers.update(sqlite=opened.query(QUESTION)))
        connection = duckdb.connect()
        connection.execute(f"SET VARIABLE exports = '{folder}/out'")
        connection.execute((folder / "out" / "traces.sql").read_text(encoding="utf-8"))
        duckdb_s = seconds_of(lambda: answers.update(duckdb=connection.execute(QUESTION).fetchall()))
    print(
        f"exported as Parquet: {exported_s:.2f} s; asked in SQLite: {sqlite_s:.2f} s, in DuckDB: {duckdb_s:.2f} s"
    )
    for row in answers["duckdb"]:
        print(*(f"{value:,.3f}" if isinstance(value, float) else value for value in row))
    if given.ranks == 1:
        return
    slow = answers["sqlite"][0]["rank"]
    if answers["duckdb"][0][0] != slow:
        sys.exit(f"SQLite names rank {slow}, DuckDB rank {answers['duckdb'][0][0]}")
