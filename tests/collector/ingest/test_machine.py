"""Which device a trace is of: its kind, and its memory as sold."""

from collections.abc import Callable
from typing import Any

import pytest

from kernelcast.collector.ingest.machine import (
    compute_of,
    gpus_per_node_of,
    process_groups,
    recorded_at,
    software_of,
)
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


@pytest.mark.parametrize(
    ("listed", "groups"),
    [
        (None, ()),
        (3, ()),
        ([7, {}], ({},)),
        (
            [
                {"pg_name": "0", "pg_size": 2, "ranks": [0, 1], "backend_config": "gloo"},
                {"pg_name": "1", "ranks": []},
            ],
            ({"name": "0", "size": 2, "ranks": [0, 1]}, {"name": "1", "ranks": []}),
        ),
    ],
)
def test_groups_that_a_trace_lists(
    make_trace: Callable[..., Trace], listed: object, groups: tuple[dict[str, Any], ...]
) -> None:
    assert process_groups(make_trace([CALL], distributedInfo={"pg_config": listed})) == groups


def test_the_device_that_most_kernels_ran_on(make_trace: Callable[..., Trace]) -> None:
    devices = [
        {"id": 0, "name": "small", "totalGlobalMem": 2**34},
        {
            "id": 1,
            "name": "large",
            "totalGlobalMem": 2**36,
            "numSms": 132,
            "computeMajor": 9,
            "computeMinor": 0,
        },
        {"id": 2, "name": "AMD large", "computeMajor": 9},
    ]
    for numbers, expected in (
        ([0, 1, 1], ("cuda", "large", "9.0", 132, 64)),
        ([0, 0, 1], ("cuda", "small", "", 0, 16)),
        ([5], ("cuda", "small", "", 0, 16)),  # none of those that are listed
        ([2], ("rocm", "AMD large", "", 0, 0)),
    ):
        kernels = [KERNEL | {"ts": 10 * at, "args": {"device": number}} for at, number in enumerate(numbers)]
        found = compute_of(make_trace(kernels, deviceProperties=devices))
        assert expected == (
            found.kind, found.device_name, found.compute_capability, found.multiprocessors, found.memory_gib
        )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "cuda"),
    [
        ({"cuda_runtime_version": 12040}, "12.4"),
        ({"cuda_runtime_version": 13010, "hip_runtime_version": 60443483}, "HIP 6.4.43483"),
        ({"cuda_runtime_version": None, "hip_runtime_version": 170243483}, "HIP 17.2.43483"),
        ({"cuda_runtime_version": 11080}, "11.8"),
        ({"cuda_runtime_version": None}, ""),
    ],
)
def test_versions(make_trace: Callable[..., Trace], fields: dict[str, Any], cuda: str) -> None:
    info = {"nccl_version": "2.21.5"}
    found = software_of(make_trace([KERNEL], distributedInfo=info, **fields))
    assert (found.torch, found.cuda, found.nccl) == ("", cuda, "2.21.5")


@pytest.mark.parametrize(("world_size", "devices"), [(None, 0), (1, 0), (2, 4), (4, 4), (5, 0)])
def test_devices_of_a_node(make_trace: Callable[..., Trace], world_size: int | None, devices: int) -> None:
    properties = [{"id": number} for number in range(4)]
    trace = make_trace([KERNEL], deviceProperties=properties, distributedInfo={"world_size": world_size})
    assert gpus_per_node_of(trace) == devices


@pytest.mark.parametrize(
    ("base_ns", "expected"),
    [
        (0, None),
        (946_684_800 * 10**9 - 5_000, None),
        (946_684_800 * 10**9, "2000-01-01T00:00:00.000005+00:00"),
        (7_258_118_400 * 10**9 - 1_005_000, "2199-12-31T23:59:59.999000+00:00"),
        (7_258_118_400 * 10**9 - 5_000, None),
    ],
)
def test_when_a_trace_was_recorded(
    make_trace: Callable[..., Trace], base_ns: int, expected: str | None
) -> None:
    assert recorded_at(make_trace([KERNEL], baseTimeNanoseconds=base_ns)) == expected
    assert recorded_at(make_trace([], baseTimeNanoseconds=base_ns)) is None
