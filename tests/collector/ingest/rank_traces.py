"""Traces of made-up runs on several ranks, with delays of known cause and size.

Every rank computes, then runs blocking collectives that end on all ranks of the group at once, on the true clock.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

_BASE_NS = 1_760_000_000_000_000_000
KERNELS = (("gemm_qkv", 900.0), ("attention", 500.0), ("gemm_up", 1200.0), ("norm", 60.0))


@dataclass
class MadeRun:
    """A run of `ranks` ranks; times in µs. Fields of faults are by rank (or by group, as its tuple of ranks)."""

    ranks: int = 8
    steps: int = 4
    layers: int = 3
    groups: Sequence[tuple[int, ...]] = ()  # of tensor parallelism: one all-reduce a layer; empty: one of all
    has_numbers: bool = True
    has_groups: bool = True
    per_host: int = 0  # ranks of a host; 0: all
    kernel_factor: Mapping[int, float] = field(default_factory=dict)
    attention_factor: Mapping[int, float] = field(default_factory=dict)
    extra_kernels: Mapping[int, int] = field(default_factory=dict)  # a layer
    loader_us: Mapping[int, float] = field(default_factory=dict)
    host_us: Mapping[int, float] = field(default_factory=dict)  # a layer
    copy_us: Mapping[int, float] = field(default_factory=dict)  # a step
    link_factor: Mapping[tuple[int, ...], float] = field(default_factory=dict)
    offset_us: Mapping[int, float] = field(default_factory=dict)  # of a host's clock
    drift: Mapping[int, float] = field(default_factory=dict)
    late_recording: Mapping[int, int] = field(default_factory=dict)  # first collectives that a rank lacks
    lost: Mapping[int, Collection[int]] = field(default_factory=dict)  # collectives of all ranks, by number
    seed: int = 0

    def write(self, folder: Path) -> Path:
        """Write a trace per rank."""
        random = np.random.default_rng(self.seed)
        folder.mkdir(exist_ok=True)
        events: list[list[dict[str, Any]]] = [[] for _ in range(self.ranks)]
        device = np.full(self.ranks, 1000.0)
        count = dict.fromkeys([*self.groups, tuple(range(self.ranks))], 0)
        correlation = 0

        def add(
            rank: int, category: str, name: str, start: float, duration: float, tid: int, **args: Any
        ) -> None:
            events[rank].append({"ph": "X", "cat": category, "name": name, "pid": 100 + rank, "tid": tid,
                                 "ts": start, "dur": duration, "args": args})  # fmt: skip

        def launch(rank: int, name: str, start: float, duration: float, launched: float, **args: Any) -> None:
            nonlocal correlation
            correlation += 1
            category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
            add(rank, "cuda_runtime", "cudaLaunchKernel", launched, 3.0, 1, correlation=correlation)
            add(rank, category, name, start, duration, 7, device=0, stream=7, correlation=correlation, **args)

        def collective(group: tuple[int, ...], elements: int) -> None:
            number = count[group]
            count[group] += 1
            starts = {rank: device[rank] + 2 + random.uniform(0, 1) for rank in group}
            transfer = elements * 2 / 50e3 * self.link_factor.get(group, 1.0)
            end = max(starts.values()) + transfer
            named = {"Process Group Name": str(group), "Process Group Ranks": json.dumps(list(group)),
                     "Group size": len(group)} if self.has_groups else {}  # fmt: skip
            for rank in group:
                args = {"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements,
                        "dtype": "BFloat16", **named}  # fmt: skip
                if self.has_numbers:
                    args["Seq"] = number + 17
                last = end + random.uniform(0, 2)
                is_recorded = number >= self.late_recording.get(rank, 0) and number not in self.lost.get(
                    rank, ()
                )
                if is_recorded or len(group) < self.ranks:
                    launch(rank, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", starts[rank], last - starts[rank],
                           starts[rank] - 100, **args)  # fmt: skip
                device[rank] = last

        for step in range(self.steps):
            begins = device.copy()
            for rank in range(self.ranks):
                loader = 300.0 + self.loader_us.get(rank, 0.0)
                add(rank, "user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
                    device[rank] + 1, loader - 2, 1)  # fmt: skip
                device[rank] += loader
                copy = 50.0 + self.copy_us.get(rank, 0.0)
                launch(
                    rank,
                    "Memcpy HtoD (Pinned -> Device)",
                    device[rank],
                    copy,
                    device[rank] - 1,
                    bytes=1 << 20,
                )
                device[rank] += copy
            for layer in range(self.layers):
                for rank in range(self.ranks):
                    late = self.host_us.get(rank, 0.0)
                    device[rank] += late
                    for name, usual in KERNELS * (1 + self.extra_kernels.get(rank, 0)):
                        factor = self.kernel_factor.get(rank, 1.0) * random.uniform(0.99, 1.01)
                        if name == "attention":
                            factor *= self.attention_factor.get(rank, 1.0)
                        launch(rank, name, device[rank], usual * factor, device[rank] - (1 if late else 200))
                        device[rank] += usual * factor + 1
                        late = 0.0
                for group in self.groups:
                    collective(group, 1 << 22)
                if layer == self.layers - 1 or not self.groups:
                    collective(tuple(range(self.ranks)), 1 << 24)
            for rank in range(self.ranks):
                add(
                    rank,
                    "user_annotation",
                    f"ProfilerStep#{step}",
                    begins[rank],
                    device[rank] - begins[rank] - 1,
                    1,
                )
        for rank in range(self.ranks):
            self._save(folder, rank, events[rank])
        return folder

    def _save(self, folder: Path, rank: int, events: list[dict[str, Any]]) -> None:
        host = rank // self.per_host if self.per_host else 0
        for event in events:
            event["ts"] = event["ts"] * (1 + self.drift.get(host, 0.0)) + self.offset_us.get(host, 0.0)
        document = {
            "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "Example GPU"}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": self.ranks},
            "host_name": f"node{host}", "baseTimeNanoseconds": _BASE_NS, "traceEvents": events,
        }  # fmt: skip
        (folder / f"rank{rank:03d}.json").write_text(json.dumps(document))
