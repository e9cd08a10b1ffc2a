"""How long is the question for the slow rank over the traces of many ranks? SQLite, and DuckDB over Parquet files.

python benchmarks/bench_ranks.py [--ranks 100] [--steps 20]
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

from kernelcast.benchmarks.harness import Bench
from kernelcast.collector.ingest import ingest_traces
from kernelcast.docs import example_traces
from kernelcast.store import Database
from kernelcast.store.export import Subset
from kernelcast.store.parquet import export_parquet

QUESTION = """
    SELECT rank, count(*) AS steps, avg(compute_ms) AS compute_ms, avg(behind_ms) AS behind_ms,
        avg(exposed_communication_ms) AS exposed_communication_ms
    FROM rank_time GROUP BY rank ORDER BY behind_ms DESC LIMIT 3
"""


def _timed(what: str, work: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    answer = work()
    print(f"{what:<36} {time.perf_counter() - start:6.2f} s")
    return answer


def main() -> None:
    """Write, ingest and export the traces, and ask both databases."""
    bench = Bench(__file__, __doc__)
    bench.parser.add_argument("--ranks", type=int, default=100)
    bench.parser.add_argument("--steps", type=int, default=20)
    given = bench.arguments()
    ranks, example_traces.STEPS = given.ranks, given.steps
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = _timed(f"{ranks} traces written", lambda: example_traces.write(folder, ranks))
        size_mb = sum(path.stat().st_size for path in paths) / 1e6
        database = folder / "traces.db"
        _timed(f"ingested, {size_mb:,.0f} MB", lambda: ingest_traces(paths, database))
        rows = _timed("exported as Parquet", lambda: export_parquet(database, folder / "out", Subset()))
        print(f"{rows['trace_event']:,} events")
        with Database.open(database, read_only=True) as opened:
            slow = _timed("asked in SQLite", lambda: opened.query(QUESTION))
        connection = duckdb.connect()
        connection.execute(f"SET VARIABLE exports = '{folder}/out'")
        connection.execute((folder / "out" / "traces.sql").read_text(encoding="utf-8"))
        found = _timed("asked in DuckDB", lambda: connection.execute(QUESTION).fetchall())
    for row in found:
        print(*(f"{value:,.3f}" if isinstance(value, float) else value for value in row))
    if found[0][0] != slow[0]["rank"]:
        sys.exit(f"SQLite names rank {slow[0]['rank']}, DuckDB rank {found[0][0]}")


if __name__ == "__main__":
    main()
