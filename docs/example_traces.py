"""Traces of a made-up training run on two devices, for the pages that show questions to traces.

Two steps of two layers; rank 1's products take a quarter longer, gradient reduction overlaps the backward pass, the
last all-reduce is exposed, and the host is late after the data of a step was loaded.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kernelcast.collector.ingest import ingest_traces

RANKS, STEPS, LAYERS = 2, 2, 2
SLOW_RANK = 1
TOKENS, WIDTH = 4096, 2048
MAIN, AUTOGRAD, COMPUTE_STREAM, NCCL_STREAM = 1, 2, 7, 20
_SHAPE = {
    "grid": [264, 1, 1],
    "block": [256, 1, 1],
    "registers per thread": 128,
    "est. achieved occupancy %": 25,
}
_PRODUCTS = (
    ("qkv", WIDTH, 3 * WIDTH),
    ("out", WIDTH, WIDTH),
    ("up", WIDTH, 4 * WIDTH),
    ("down", 4 * WIDTH, WIDTH),
)


class _Rank:
    def __init__(self, rank: int, ranks: int, arrivals: Sequence[float] = ()) -> None:
        self.rank, self.ranks = rank, ranks
        self.awaited = iter(arrivals)  # of the slow rank at its collectives
        self.arrivals: list[float] = []
        self.slowdown = 1.25 if rank == SLOW_RANK else 1.0
        self.events: list[dict[str, Any]] = []
        self.host_us, self.device_us, self.nccl_us = 1000.0, 1000.0, 1000.0
        self.number = 0

    def add(
        self, category: str, name: str, start_us: float, duration_us: float, tid: int, **args: Any
    ) -> None:
        pid = self.rank if category in ("kernel", "gpu_memcpy") else 100 + self.rank
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": round(start_us, 3),
             "dur": round(duration_us, 3), "args": args})  # fmt: skip

    def launch(
        self,
        operator: str,
        kernel: str,
        duration_us: float,
        dims: list[Any],
        *,
        thread: int = MAIN,
        **args: Any,
    ) -> None:
        """A call of 12 µs that launches one kernel, on NCCL's stream where `args` describe a collective."""
        self.number += 1
        is_collective = "Collective name" in args
        types = ["c10::BFloat16" if entry else "" for entry in dims]
        sequence = {} if thread == AUTOGRAD else {"Sequence number": self.number}
        ids = {"External id": self.number, "correlation": 5000 + self.number}
        self.add("cpu_op", operator, self.host_us, 12, thread,
                 **{"External id": self.number, "Input Dims": dims, "Input type": types}, **sequence)  # fmt: skip
        self.add("cuda_runtime", "cudaLaunchKernel", self.host_us + 4, 5, thread, **ids)
        start_us = max(self.nccl_us if is_collective else self.device_us, self.host_us + 10)
        stream = NCCL_STREAM if is_collective else COMPUTE_STREAM
        if is_collective:
            start_us = max(start_us, self.device_us)
            self.arrivals.append(start_us)
            duration_us += max(next(self.awaited, start_us) - start_us, 0.0)
            self.nccl_us = start_us + duration_us
        else:
            self.device_us = start_us + duration_us
        category = "gpu_memcpy" if kernel.startswith("Memcpy") else "kernel"
        self.add(category, kernel, start_us, duration_us, stream,
                 **{"device": self.rank, "stream": stream, **_SHAPE, **ids, **args})  # fmt: skip
        self.host_us += 15

    def steps(self) -> Iterator[list[dict[str, Any]]]:
        """The events of each step."""
        for number in range(STEPS):
            self.step(number + 3)
            done, self.events = self.events, []
            yield done

    def step(self, number: int) -> None:
        start_us = self.host_us
        self.host_us += 400  # the data loader
        self.launch(
            "aten::copy_", "Memcpy HtoD (Pinned -> Device)", 60, [[TOKENS], [TOKENS], []], bytes=8 * TOKENS
        )
        forward_us, forward = self.host_us, []
        for _ in range(LAYERS):
            self.launch(
                "aten::layer_norm", "layer_norm_kernel", 25, [[1, TOKENS, WIDTH], [], [WIDTH], [WIDTH], []]
            )
            for name, inner, columns in _PRODUCTS:
                self.product(f"gemm_{name}", inner, columns, MAIN)
                forward.append(self.number)
            self.launch("aten::gelu", "gelu_kernel", 40, [[1, TOKENS, 4 * WIDTH], []])
        self.add("user_annotation", "forward", forward_us - 1, self.host_us - forward_us, MAIN)
        for layer in range(LAYERS):
            for name, inner, columns in reversed(_PRODUCTS):
                node = "autograd::engine::evaluate_function: MmBackward0"
                self.add("cpu_op", node, self.host_us - 1, 30, AUTOGRAD, **{"Sequence number": forward.pop()})
                self.product(f"gemm_{name}_dgrad", columns, inner, AUTOGRAD)
                self.product(f"gemm_{name}_wgrad", TOKENS, columns, AUTOGRAD, rows=inner)
            exposed_us = 250 if layer == LAYERS - 1 else 0
            elements = 12 * WIDTH * WIDTH
            self.launch(
                "c10d::allreduce_", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 600 + exposed_us,
                [[elements]],
                thread=AUTOGRAD,
                **{"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements,
                   "Group size": self.ranks, "dtype": "BFloat16",
                   "Process Group Ranks": json.dumps(list(range(self.ranks)))},
            )  # fmt: skip
        self.device_us = max(self.device_us, self.nccl_us)  # the optimizer waits for the gradients
        self.launch("aten::_fused_adamw_", "fused_adam_kernel", 180, [])
        self.host_us = max(self.host_us, self.device_us) + 20  # the loss is read
        self.add("user_annotation", f"ProfilerStep#{number}", start_us, self.host_us - start_us - 1, MAIN)

    def product(self, kernel: str, inner: int, columns: int, thread: int, rows: int = TOKENS) -> None:
        """A product at 60 % of 989 TFLOP/s."""
        duration_us = 2 * rows * inner * columns / 0.6 / 989e6 * self.slowdown
        self.launch("aten::mm", kernel, duration_us, [[rows, inner], [inner, columns]], thread=thread)


def write(folder: Path, ranks: int = RANKS) -> list[Path]:
    """Write the trace of each rank into a folder; answers their paths."""
    paths = []
    slow = _Rank(SLOW_RANK, ranks)
    for _ in slow.steps() if ranks > 1 else ():
        pass
    for number in range(ranks):
        head = {
            "schemaVersion": 1,
            "deviceProperties": [
                {"id": n, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_018_279_936, "computeMajor": 9,
                 "computeMinor": 0, "numSms": 132}
                for n in range(ranks)
            ],
            "distributedInfo": {"backend": "nccl", "rank": number, "world_size": ranks},
            "cuda_runtime_version": 12080,
            "baseTimeNanoseconds": 1_760_000_000_000_000_000,
        }  # fmt: skip
        paths.append(folder / f"rank{number}.json")
        with paths[-1].open("w") as file:
            file.write(json.dumps(head)[:-1] + ', "traceEvents": [')
            for place, step in enumerate(_Rank(number, ranks, slow.arrivals).steps()):
                file.write((", " if place else "") + json.dumps(step)[1:-1])
            file.write("]}")
    return paths


def database(folder: Path) -> Path:
    """A database with the traces of both ranks, in a folder."""
    path = folder / "traces.db"
    ingest_traces(write(folder), path)
    return path
