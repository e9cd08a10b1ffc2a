"""How fast traces are read, ingested, exported and asked (SQLite, and DuckDB over Parquet files), in how much memory.

    python benchmarks/bench_traces.py [--ranks 100] [--steps 20]

Writes the made-up traces of docs/example_traces.py for this number of ranks and steps. Reading and ingesting run in
processes of their own; printed are seconds of the processor, MB/s of JSON, the peak of the process's memory, and the
database's bytes per event, indexes and samples included. Both databases are asked for the slow rank.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb

from kernelcast.benchmarks.harness import Bench, seconds_of
from kernelcast.collector.ingest import ingest_traces
from kernelcast.collector.traces.kineto import read_trace
from kernelcast.docs import example_traces
from kernelcast.store import Database
from kernelcast.store.export import Subset
from kernelcast.store.parquet import export_parquet

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
    """Processor time of ingesting them."""
    start = time.process_time()
    ingest_traces(sorted(Path(folder).glob("*.json")), Path(database))
    return {"seconds": time.process_time() - start}


def main() -> None:
    """Write, read, ingest and export the traces, and ask both databases."""
    bench = Bench(__file__, __doc__, read=read, ingest=ingest)
    bench.parser.add_argument("--ranks", type=int, default=100)
    bench.parser.add_argument("--steps", type=int, default=20)
    given = bench.arguments()
    example_traces.STEPS = given.steps
    with tempfile.TemporaryDirectory() as name:
        folder, database = Path(name), Path(name, "traces.db")
        paths = example_traces.write(folder, given.ranks)
        size_mb = sum(path.stat().st_size for path in paths) / 1e6
        print(f"{given.ranks} traces, {size_mb:,.0f} MB of JSON")
        for part, arguments in (("read", {}), ("ingest", {"database": database})):
            found = bench.part(part, folder=folder, **arguments)
            rate = f"{found['seconds']:.1f} s, {size_mb / found['seconds']:.0f} MB/s"
            print(f"{part}: {rate}, peak {found['peak_mb'] * 1.048576:,.0f} MB", flush=True)
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


if __name__ == "__main__":
    main()
