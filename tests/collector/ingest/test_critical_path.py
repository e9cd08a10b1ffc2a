"""The critical path of traces: which calls of the host wait for the device."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kernelcast.collector.ingest.run import ingest_traces
from kernelcast.store import Database
from kernelcast.store.trace_report import trace_report, traced_runs
from tests.collector.ingest.conftest import MAIN, Step

WAIT_US = 400


@pytest.mark.parametrize("wait", ["call", "copy", "none"])
def test_the_host_waits_for_the_device(make_file: Callable[..., Path], tmp_path: Path, wait: str) -> None:
    step = Step()
    step.host("user_annotation", "step 1", 990, 1000, MAIN, {})
    step.call("aten::mm", dims=[[64, 64], [64, 64]], kernels=(("gemm", WAIT_US),))
    [kernel] = [event for event in step.events if event["cat"] == "kernel"]
    kernel["ts"] = 1010.0
    if wait == "call":
        step.host("cuda_runtime", "cudaStreamSynchronize", 1012, WAIT_US, MAIN, {})
    if wait == "copy":
        launched = {"correlation": 900, "External id": 900}
        step.host("cuda_runtime", "cudaMemcpyAsync", 1010, 20, MAIN, launched)
        step.kernel("Memcpy DtoH (Device -> Pageable)", 1010 + WAIT_US, 1.0, **launched)
        step.events[-1]["cat"] = "gpu_memcpy"
    step.host_us = 1010.0 + WAIT_US + 20
    step.device_us = step.host_us + 10
    step.call("aten::add", dims=[[64, 64], [64, 64]], kernels=(("add", 5.0),))
    ingest_traces([make_file("trace.json", events=step.events)], tmp_path / "traces.db")
    with Database.open(tmp_path / "traces.db") as database:
        report = trace_report(database, traced_runs(database)[0])
    path = {row["part"]: row for row in report.path}
    assert path["aten::add (forward)"]["path_ms"] == 0.005
    product = path.get("gemm (forward)", {"path_ms": 0.0, "half_saves_ms": 0.0})
    assert (product["path_ms"], product["half_saves_ms"]) == ((0.0, 0.0) if wait == "none" else (0.4, 0.2))
    assert path["launching forward"]["path_ms"] == pytest.approx(0.43 if wait == "none" else 0.03, abs=0.01)


def test_the_path_is_of_a_whole_step_not_of_a_shorter_one_that_the_recording_cuts(
    make_file: Callable[..., Path], tmp_path: Path
) -> None:
    step = Step()
    for number, (start_us, duration_us) in enumerate(((1000.0, 900.0), (2000.0, 400.0), (2450.0, 30.0))):
        step.host_us = step.device_us = start_us
        name = f"iteration {number}"
        step.host(
            "user_annotation", name, step.host_us - 10, 60, MAIN, {"finished": False} if number == 2 else {}
        )
        step.device_us += 30
        step.call("aten::mm", dims=[[64, 64], [64, 64]], kernels=(("gemm", duration_us),))
    ingest_traces([make_file("trace.json", events=step.events)], tmp_path / "traces.db")
    with Database.open(tmp_path / "traces.db") as database:
        report = trace_report(database, traced_runs(database)[0])
    assert {row["step"]: row["in_mean"] for row in report.steps} == {
        "iteration 0": 0, "iteration 1": 1, "iteration 2 (cut)": 0,
    }  # fmt: skip
    [product] = [row for row in report.path if row["part"] == "gemm (forward)"]
    assert (product["step"], product["path_ms"]) == ("iteration 1", 0.4)
