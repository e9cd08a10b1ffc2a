"""Which device a trace is of: its kind, and its memory as sold."""

from collections.abc import Callable
from typing import Any

import pytest

from kernelcast.collector.ingest.machine import compute_of
from kernelcast.collector.traces.kineto import Trace

KERNEL = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 5, "dur": 2, "pid": 0, "tid": 7, "args": {}}
CALL = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "pid": 1, "tid": 1}


def launch(category: str, name: str) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": 2, "dur": 1, "pid": 1, "tid": 1}


@pytest.mark.parametrize(
    ("events", "backend", "kind", "name"),
    [
        ([CALL], None, "cpu", "unknown CPU"),
        ([CALL], "gloo", "cpu", "unknown CPU"),
        ([CALL], "nccl", "cuda", "unknown GPU"),
        ([KERNEL, launch("cuda_runtime", "cudaLaunchKernel")], None, "cuda", "unknown GPU"),
        ([KERNEL, launch("cuda_runtime", "hipLaunchKernel")], None, "rocm", "unknown GPU"),
        ([KERNEL, launch("xpu_runtime", "urEnqueueKernelLaunch")], None, "xpu", "unknown XPU"),
        ([CALL, launch("mtia_ccp_events", "gemm")], "gloo", "mtia", "unknown MTIA"),
        ([CALL, launch("hpu_op", "gemm")], None, "hpu", "unknown HPU"),
        ([CALL], "hccl", "accelerator", "unknown accelerator"),
        ([KERNEL, CALL], None, "accelerator", "unknown accelerator"),
    ],
)
def test_the_kind_of_device(
    make_trace: Callable[..., Trace], events: list[dict[str, Any]], backend: str | None, kind: str, name: str
) -> None:
    info = {"backend": backend} if backend else {}
    fields = {"deviceProperties": [], "distributedInfo": info, "cuda_runtime_version": None}
    found = compute_of(make_trace(events, **fields))
    assert (found.kind, found.device_name) == (kind, name)


@pytest.mark.parametrize(
    ("size_bytes", "gib"),
    [
        (42_505_273_344, 40), (42_297_524_224, 40),  # two drivers, one A100
        (34_079_637_504, 32), (16_945_512_448, 16), (85_018_279_936, 80), (68_702_699_520, 64),
        (11_546_394_624, 11), (10 * 2**30, 10), (2**30, 1),
    ],
)  # fmt: skip
def test_memory_as_sold(make_trace: Callable[..., Trace], size_bytes: int, gib: int) -> None:
    trace = make_trace([KERNEL], deviceProperties=[{"id": 0, "name": "GPU", "totalGlobalMem": size_bytes}])
    assert compute_of(trace).memory_gib == gib
