"""Totals of traces as a plain count of their JSON gives them, and as the database has them after ingesting.

Counted are the device's complete events and the sum of their durations, by 20 lines that share nothing with the reader.
Steps are those that the trace marks; what was launched before the recording is in none of them.
"""

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

from kernelcast.benchmarks.harness import Bench, script
from kernelcast.collector.ingest import ingest_traces
from kernelcast.docs.markdown import table
from kernelcast.runtime.errors import DataError
from kernelcast.store import Database

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset", "mtia_ccp_events", "hpu_op"}
TOTALS = """
    SELECT count(*) AS events, sum(duration_us) / 1e3 AS total_ms, sum(step IS NULL) AS outside,
        (SELECT group_concat(device_ms, ' / ') FROM (SELECT device_ms FROM step_time WHERE step IS NOT NULL LIMIT 4))
            AS steps_ms
    FROM trace_event
"""


def counted(path: Path) -> tuple[int, float]:
    """Number of the device's events, and the sum of their durations, ms."""
    content = path.read_bytes()
    document: Any = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    events = document["traceEvents"] if isinstance(document, dict) else document
    durations = [event["dur"] for event in events if event.get("ph") == "X" and event.get("cat") in DEVICE]
    return len(durations), sum(durations) / 1e3


def row(path: Path) -> tuple[str, ...]:
    """One trace in both counts."""
    with tempfile.TemporaryDirectory() as folder:
        database_path = Path(folder, "trace.db")
        try:
            ingest_traces([path], database_path)
        except DataError as error:
            return (path.name, "", "", "", "", "", "refused: " + str(error).partition(": ")[2][:60])
        with Database.open(database_path, read_only=True) as database:
            [found] = database.query(TOTALS)
    events, total_ms = counted(path)
    return (path.name, f"{events:,}", f"{found['events']:,}", f"{total_ms:,.3f}", f"{found['total_ms']:,.3f}",
            f"{found['outside']:,}", found["steps_ms"] or "none marked")  # fmt: skip


@script(options={"traces": {"nargs": "+", "type": Path}})
def main(bench: Bench) -> None:
    heads = ("trace", "events", "stored", "ms", "stored ms", "in no step", "steps, ms of the device")
    print(*table(heads, [row(path) for path in bench.given.traces], is_padded=False), sep="\n")
