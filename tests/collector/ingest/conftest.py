"""Traces written by hand: a training step on a made-up GPU, and single events."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelcast.collector.traces.kineto import Trace, parse_trace

Events = list[dict[str, Any]]
TraceMaker = Callable[..., Trace]

MAIN, AUTOGRAD = 1, 2
D, TOKENS = 8, 4


class Step:
    """Events of a training step: calls on the host, and kernels that start long after their launches."""

    def __init__(self, start_us: float = 1000.0) -> None:
        self.events: Events = []
        self.host_us, self.device_us = start_us, start_us + 500
        self.external, self.correlation, self.sequence = 0, 100, 0

    def call(
        self,
        name: str,
        *,
        dims: list[Any] | None = None,
        kernels: tuple[tuple[str, float], ...] = (),
        inner: str = "",
        thread: int = MAIN,
        **args: Any,
    ) -> None:
        """A call of 20 µs, with a call `inner` inside that launches `kernels` (name and µs) one after another."""
        self.external += 1
        start, arguments = self.host_us, {"External id": self.external, **args}
        if dims is not None:
            types = ["c10::BFloat16" if entry else "" for entry in dims]
            arguments |= {"Input Dims": dims, "Input type": types}
        self.host("cpu_op", name, start, 20, thread, arguments)
        if inner:
            self.external += 1
            self.host("cpu_op", inner, start + 1, 18, thread, {"External id": self.external})
        for place, (kernel, duration_us) in enumerate(kernels):
            self.correlation += 1
            launched = {"correlation": self.correlation, "External id": self.external}
            self.host("cuda_runtime", "cudaLaunchKernel", start + 2 + place, 1, thread, launched)
            self.kernel(kernel, self.device_us, duration_us, **launched)
            self.device_us += duration_us + 1
        self.host_us += 25

    def host(
        self, category: str, name: str, start: float, duration: float, thread: int, args: dict[str, Any]
    ) -> None:
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 10, "tid": thread, "ts": start, "dur": duration,
             "args": args})  # fmt: skip

    def kernel(self, name: str, start_us: float, duration_us: float, stream: int = 7, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start_us, "dur": duration_us,
             "args": {"device": 0, "stream": stream, **args}})  # fmt: skip

    def forward(self, name: str, dims: list[Any], *kernels: tuple[str, float], **args: Any) -> int:
        """A differentiable call; answers its sequence number."""
        self.sequence += 1
        self.call(name, dims=dims, kernels=kernels, **{"Sequence number": self.sequence}, **args)
        return self.sequence

    def backward(self, node: str, sequence: int, *kernels: tuple[str, float]) -> None:
        """A node of autograd, on its thread."""
        self.call(
            f"autograd::engine::evaluate_function: {node}",
            kernels=kernels,
            inner="aten::mm",
            thread=AUTOGRAD,
            **{"Sequence number": sequence, "Fwd thread id": 1},
        )


def training_step(start_us: float = 1000.0) -> Step:
    """One layer, forward and backward, with an all-reduce overlapped with the backward pass."""
    step, t, d = Step(start_us), TOKENS, D
    step.forward("aten::embedding", [[50, d], [2, 2], [], []], ("gather", 3.0))
    norm = step.forward("aten::layer_norm", [[2, 2, d], [], [d], [d], []], ("norm", 4.0))
    qkv = step.forward(
        "aten::addmm", [[3 * d], [t, d], [d, 3 * d], [], []], ("gemm_qkv", 10.0), ("bias", 1.0)
    )
    step.forward(
        "aten::_scaled_dot_product_flash_attention",
        [[2, 2, 2, 4]] * 3 + [[], [], []],
        ("flash_fwd", 20.0),
        **{"Concrete Inputs": ["", "", "", "0.", "True", "False"]},
    )
    step.forward("aten::addmm", [[d], [t, d], [d, d], [], []], ("gemm_out", 9.0))
    step.forward("aten::addmm", [[4 * d], [t, d], [d, 4 * d], [], []], ("gemm_up", 12.0))
    step.forward("aten::gelu", [[2, 2, 4 * d], []], ("gelu", 2.0))
    step.forward("aten::addmm", [[d], [t, 4 * d], [4 * d, d], [], []], ("gemm_down", 13.0))
    step.forward("aten::mm", [[t, d], [d, 50]], ("gemm_logits", 30.0))
    step.call("aten::add", dims=[[2, 2, d], [2, 2, d]], kernels=(("add", 2.0),))
    during = step.device_us
    step.backward("AddmmBackward0", qkv, ("gemm_dx", 11.0), ("gemm_dw", 12.0))
    step.backward("LayerNormBackward0", norm, ("norm_bwd", 6.0))
    step.backward("torch::autograd::AccumulateGrad", 0, ("accumulate", 1.0))
    step.kernel(
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", during + 2, 15.0, stream=20, correlation=9000,
        **{"Collective name": "allreduce", "In msg nelems": 4096, "Out msg nelems": 4096, "Group size": 2,
           "dtype": "BFloat16", "Process Group Ranks": "[0, 1]"},
    )  # fmt: skip
    return step


def document(events: Events, **fields: Any) -> dict[str, Any]:
    """A trace file's content."""
    return {
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": number, "name": "Example GPU", "totalGlobalMem": 80 * 2**30, "computeMajor": 9,
             "computeMinor": 0, "numSms": 132}
            for number in range(8)
        ],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2, "nccl_version": "2.27.3"},
        "cuda_runtime_version": 12080,
        "baseTimeNanoseconds": 1_760_000_000_000_000_000,
        "displayTimeUnit": "ms",
        "traceEvents": events,
        **fields,
    }  # fmt: skip


@pytest.fixture
def step() -> Step:
    return training_step()


@pytest.fixture
def make_trace() -> TraceMaker:
    """Parse events (with fields of the file) as a trace."""

    def make(events: Events, **fields: Any) -> Trace:
        return parse_trace(json.dumps(document(events, **fields)).encode(), Path("made.json"))

    return make


@pytest.fixture
def make_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a training step as a trace file: `make_file("rank1.json", rank=1)`."""

    def make(name: str, *, rank: int = 0, events: Events | None = None, **fields: Any) -> Path:
        info = {"backend": "nccl", "rank": rank, "world_size": 2}
        content = document(
            training_step(1000.0 + rank).events if events is None else events,
            **{"distributedInfo": info, **fields},
        )
        path = tmp_path / name
        path.write_text(json.dumps(content))
        return path

    return make
