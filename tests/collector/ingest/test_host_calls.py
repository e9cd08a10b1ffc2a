"""Sums of the host's calls by hand: which calls count, in which step, and which long ones stand alone."""

from collections.abc import Callable
from typing import Any

from kernelcast.collector.ingest.host_calls import host_times
from kernelcast.collector.traces.call_tree import CallTree
from kernelcast.collector.traces.kineto import Trace


def event(category: str, name: str, start_us: float, time_us: float) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start_us, "dur": time_us}


def test_calls_are_summed_by_step_and_name(make_trace: Callable[..., Trace]) -> None:
    trace = make_trace(
        [
            event("cpu_op", "aten::linear", 50, 10),
            event("user_annotation", "ProfilerStep#0", 100, 100),
            event("cpu_op", "aten::linear", 110, 30),
            event("cuda_runtime", "cudaLaunchKernel", 111, 1),
            event("cpu_op", "aten::mm", 112, 10),  # inside the other one
            event("cpu_op", "aten::linear", 150, 20),
            event("cuda_runtime", "cudaLaunchKernel", 151, 3),
            event("user_annotation", "ProfilerStep#1", 201, 300),
            event("user_annotation", "loading", 210, 5),
            event("cuda_runtime", "cudaStreamSynchronize", 220, 50),
            event("cuda_runtime", "cudaStreamSynchronize", 280, 60),
            event("cuda_runtime", "cudaStreamSynchronize", 350, 49),
            event("cuda_runtime", "cudaLaunchKernel", 400, 70),
            event("cpu_op", "aten::Memcpy", 410, 55),
            event("cpu_op", "aten::Memcpy", 471, 10),
            event("cuda_runtime", "cudaStreamSynchronize", 482, 90),
        ]
    )
    assert sorted(map(tuple, host_times(trace, CallTree(trace))), key=str) == sorted(
        [
            (None, "operator", "aten::linear", 1, 10_000, 10_000),
            (0, "operator", "aten::linear", 2, 50_000, 30_000),
            (1, "operator", "aten::Memcpy", 2, 65_000, 55_000),
            (1, "annotation", "loading", 1, 5_000, 5_000),
            (0, "runtime", "cudaLaunchKernel", 2, 4_000, 3_000),
            (1, "runtime", "cudaLaunchKernel", 1, 70_000, 70_000),
            (1, "runtime", "cudaStreamSynchronize", 1, 49_000, 49_000),
            (1, "runtime", "cudaStreamSynchronize", 1, 50_000, 50_000),
            (1, "runtime", "cudaStreamSynchronize", 1, 60_000, 60_000),
            (1, "runtime", "cudaStreamSynchronize", 1, 90_000, 90_000),
        ],
        key=str,
    )
