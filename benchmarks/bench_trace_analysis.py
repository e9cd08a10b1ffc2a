"""The answers of the trace views compared with HolisticTraceAnalysis's (MIT, pip: HolisticTraceAnalysis).

Compared per trace, where both define the same thing: the span of the device's events, idle time, compute (the union of
the kernels' times), exposed communication (its union without compute), the idle time of each stream by cause, and the
total time of every kernel. HolisticTraceAnalysis leaves out events that it cannot assign to a step and rounds times to
whole microseconds, unless told otherwise: both are switched off. It divides what the host does not cause by a length
of the gap, which the views do not: the two parts are added. The aim is 1 %; what differs by more is marked.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from kernelcast.benchmarks.harness import Bench, script
from kernelcast.collector.ingest.open_traces import opened_traces
from kernelcast.docs.markdown import table

AIM_PERCENT = 1.0

_THEIRS = """
import json, logging, sys, warnings
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
from hta.configs.config import HtaConfig
from hta.trace_analysis import TraceAnalysis
from hta.utils.utils import get_kernel_type, merge_kernel_intervals
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=sys.argv[2], include_last_profiler_step=True)
frame = analysis.t.get_trace(0)
names = analysis.t.symbol_table.get_sym_table()
on_device = frame[frame["stream"].ne(-1)].copy()
on_device["kernel"] = [names[name] for name in on_device["name"]]
on_device["kind"] = [get_kernel_type(name) for name in on_device["kernel"]]
[temporal] = analysis.get_temporal_breakdown(visualize=False).to_dict("records")
found = {
    "events": len(on_device),
    "span": float(temporal["kernel_time(us)"]),
    "idle": float(temporal["idle_time(us)"]),
    "compute": float(temporal["compute_time(us)"]),
}
communication = on_device[on_device["kind"].eq("COMMUNICATION")]
if len(communication):
    merged = merge_kernel_intervals(communication.copy())
    overlap = analysis.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].iloc[0] / 100
    found["exposed communication"] = float((merged["end"] - merged["ts"]).sum() * (1 - overlap))
for name, total in on_device.groupby("kernel")["dur"].sum().items():
    found["kernel " + name] = float(total)
try:
    idle, _ = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
    for row in idle.to_dict("records"):
        cause = "idle, host" if row["idle_category"] == "host_wait" else "idle, other causes"
        name = f"stream {int(row['stream'])} {cause}"
        found[name] = found.get(name, 0.0) + float(row["idle_time"])
except Exception as error:  # it needs launches of all kernels
    print(type(error).__name__, error, file=sys.stderr)
print(json.dumps(found))
"""
_OURS = {
    "events": "SELECT count(*) FROM trace_event",
    "span": "SELECT max(start_us + duration_us) - min(start_us) FROM trace_event",
    "idle": "SELECT sum(idle_us) FROM trace_event",
    "compute": "SELECT sum(exposed_us) FROM trace_event WHERE class = 'compute'",
    "exposed communication": "SELECT sum(exposed_us) FROM trace_event WHERE class = 'communication'",
}
_STREAMS = "SELECT stream, host_ms * 1e3, (waiting_ms + unknown_ms) * 1e3 FROM stream_idle"
_CAUSES = ("idle, host", "idle, other causes")


def ours(trace: Path) -> dict[str, float]:
    """The figures of the views, µs."""
    with opened_traces([trace]) as database:
        ask = database.connection.execute
        found = {name: value for name, sql in _OURS.items() if (value := ask(sql).fetchone()[0]) is not None}
        for name, total_us in ask("SELECT kernel, sum(total_us) FROM kernel_time GROUP BY kernel"):
            found[f"kernel {name}"] = total_us
        for stream, *times_us in ask(_STREAMS):
            for cause, time_us in zip(_CAUSES, times_us, strict=True):
                found[f"stream {stream} {cause}"] = time_us
    return found


def theirs(trace: Path, python: str) -> dict[str, float]:
    """The figures of HolisticTraceAnalysis, µs."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [python, "-c", _THEIRS, str(trace.resolve()), folder],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"},
        )
    if done.returncode:
        sys.exit(f"{trace}: HolisticTraceAnalysis failed: {done.stderr.strip().splitlines()[-1]}")
    if done.stderr.strip():
        print(f"{trace.name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def rows(trace: Path, python: str) -> list[tuple[str, ...]]:
    """Rows of the table: the parts, each stream's idle time, and the kernels taken together."""
    one, two = ours(trace), theirs(trace, python)
    found = []
    for name in (name for name in two if not name.startswith("kernel ")):
        our, their = one.get(name, 0.0), two[name]
        difference = abs(our - their) / their * 100 if their else 0.0 if not our else 100.0
        mark = "" if difference <= AIM_PERCENT else " *"
        found.append((trace.name, name, f"{our:,.0f}", f"{their:,.0f}", f"{difference:.2f}{mark}"))
    kernels = [name for name in {**one, **two} if name.startswith("kernel ")]
    our_us, their_us = ([both.get(name, 0.0) for name in kernels] for both in (one, two))
    worst = max(
        (abs(our - their) / (their or 1e-9) * 100 for our, their in zip(our_us, their_us, strict=True)),
        default=0,
    )
    name = f"{len(kernels)} kernels, worst of all"
    return [*found, (trace.name, name, f"{sum(our_us):,.0f}", f"{sum(their_us):,.0f}", f"{worst:.2f}")]


@script(
    page="trace-figures.md",
    options={
        "traces": {"nargs": "+", "type": Path},
        "--hta-python": {"required": True, "help": "Python with HolisticTraceAnalysis"},
    },
)
def main(bench: Bench) -> None:
    given = bench.given
    found = [row for trace in given.traces for row in rows(trace, given.hta_python)]
    heads = ("trace", "figure", "kernelcast µs", "HTA µs", "difference %")
    bench.publish("\n".join(["", *table(heads, found, is_padded=False), "\n"]))
