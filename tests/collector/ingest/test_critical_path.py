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


@pytest.mark.parametrize("is_recorded", [True, False])
def test_recorded_waits_between_streams_say_what_an_event_waited_for(
    make_file: Callable[..., Path], tmp_path: Path, is_recorded: bool
) -> None:
    """A gather waits for one of two kernels on other streams; the other one ends later."""
    step = Step()
    step.host("user_annotation", "step 1", 990, 2000, MAIN, {})
    for number, (name, stream, start_us, duration_us) in enumerate(
        (("awaited", 7, 1010.0, 300.0), ("later", 8, 1012.0, 307.0), ("gather", 9, 1320.0, 100.0)), 1
    ):
        launched = {"correlation": number, "External id": number}
        step.host("cpu_op", f"my::{name}", 1000.0 + 10 * number, 8, MAIN, {"External id": number})
        step.host("cuda_runtime", "cudaLaunchKernel", 1001.0 + 10 * number, 1, MAIN, launched)
        step.kernel(name, start_us, duration_us, stream=stream, **launched)
    step.host("cuda_runtime", "cudaEventRecord", 1025.0, 1, MAIN, {"correlation": 50})
    step.host("cuda_runtime", "cudaStreamWaitEvent", 1027.0, 1, MAIN, {"correlation": 51})
    if is_recorded:
        sync = {"cuda_sync_kind": "Stream Wait Event", "device": 0, "stream": 9, "correlation": 51,
                "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 50, "wait_on_cuda_event_id": 3}  # fmt: skip
        step.host("cuda_sync", "Stream Wait Event", 1027.5, 0, MAIN, sync)
    ingest_traces([make_file("trace.json", events=step.events)], tmp_path / "traces.db")
    with Database.open(tmp_path / "traces.db") as database:
        path = {row["part"]: row for row in trace_report(database, traced_runs(database)[0]).path}
        names = [event["name"] for event in database.query("SELECT name FROM trace_event ORDER BY sequence")]
        waits = database.query("SELECT sequence, awaited_sequence FROM stream_wait")
    assert [(names[wait["sequence"]], names[wait["awaited_sequence"]]) for wait in waits] == (
        [("gather", "awaited")] if is_recorded else []
    )
    awaited, other = ("my::awaited", "my::later") if is_recorded else ("my::later", "my::awaited")
    assert path[f"{awaited} (forward)"]["half_saves_ms"] > 0.1
    assert f"{other} (forward)" not in path
    assert path["before a start"]["path_ms"] == pytest.approx(0.01 if is_recorded else 0.001, abs=0.005)
