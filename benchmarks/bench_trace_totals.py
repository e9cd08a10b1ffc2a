"""Totals of traces as a plain count of their JSON gives them, and as the database has them after ingesting.

Counted are the device's complete events, the sum of their durations, and the steps that the trace marks, by 40 lines
that share nothing with the reader. What was launched before the recording is in no step; "before" it was in the one in
which it ran.
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
HOST, STEP = {"user_annotation", "cpu_op", "Operator"}, "ProfilerStep#"
TOTALS = """
    SELECT count(*) AS events, sum(duration_us) / 1e3 AS total_ms, sum(step IS NULL) AS outside,
        (SELECT group_concat(device_ms, ' / ') FROM (SELECT device_ms FROM step_time WHERE step IS NOT NULL))
            AS steps_ms
    FROM trace_event
"""


def steps_ms(events: list[Any], device: list[Any], *, by_launch_alone: bool) -> str:
    """Of every step: what its events add to the time until the last end so far, ms."""
    calls = [
        event for event in events if "untime" in str(event.get("cat")) or event.get("cat") == "cuda_driver"
    ]
    launched = {
        event["args"]["correlation"]: event["ts"] for event in calls if "correlation" in event["args"]
    }
    marks = [event for event in events if str(event["name"]).startswith(STEP) and event.get("cat") in HOST]
    found, until = dict.fromkeys((one["name"] for one in marks), 0.0), 0.0
    for event in sorted(device, key=lambda event: float(event["ts"])):
        at = launched.get(event["args"].get("correlation"), -1 if by_launch_alone else event["ts"])
        step = next((one["name"] for one in marks if one["ts"] <= at < one["ts"] + one["dur"]), "")
        end = event["ts"] + event["dur"]
        if end > until:
            found[step] = found.get(step, 0.0) + end - (until or event["ts"])
            until = end
    return " / ".join(f"{us / 1e3:.3f}" for step, us in found.items() if step and us) or "none marked"


def counted(path: Path) -> tuple[int, float, str, str]:
    """Number of the device's events, the sum of their durations, ms, and steps by launch alone, and as before."""
    content = path.read_bytes()
    document: Any = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    events = document["traceEvents"] if isinstance(document, dict) else document
    events = [event for event in events if event.get("ph") == "X"]
    device = [event for event in events if event.get("cat") in DEVICE]
    steps = [steps_ms(events, device, by_launch_alone=one) for one in (True, False)]
    return len(device), sum(event["dur"] for event in device) / 1e3, *steps


def row(path: Path) -> tuple[str, ...]:
    """One trace in both counts."""
    with tempfile.TemporaryDirectory() as folder:
        database_path = Path(folder, "trace.db")
        try:
            ingest_traces([path], database_path)
        except DataError as error:
            return (path.name, "", "", "", "", "", "", "", "refused: " + str(error).partition(": ")[2][:60])
        with Database.open(database_path, read_only=True) as database:
            [found] = database.query(TOTALS)
    events, total_ms, steps, before = counted(path)
    return (path.name, f"{events:,}", f"{found['events']:,}", f"{total_ms:,.3f}", f"{found['total_ms']:,.3f}",
            f"{found['outside']:,}", before, steps, found["steps_ms"] or "none marked")  # fmt: skip


@script(options={"traces": {"nargs": "+", "type": Path}})
def main(bench: Bench) -> None:
    heads = (
        "trace",
        "events",
        "stored",
        "ms",
        "stored ms",
        "in no step",
        "steps before, ms",
        "steps, ms",
        "stored steps, ms",
    )
    print(*table(heads, [row(path) for path in bench.given.traces], is_padded=False), sep="\n")
