"""Memory of every stage by op: the shares that ops have in the parts of `StageMemory`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.memory.contents import op_names
from kernelcast.runtime.memory.over_step import memory_over_step
from kernelcast.runtime.memory.stages import bytes_by_stage, stage_memory
from kernelcast.runtime.pipeline.schedules import stage_orders
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.model import ModelConfig

PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "working", "workspace")
_OF_OPS = PARTS[:5]
"""Parts that are sums over ops."""
MOMENTS = ("loss", "output projection", "MLP", "attention", "embedding")
"""Whose backward pass is the fullest moment, in the order of `Bytes.moments`."""
_IN_USE = (
    "gradients in use, recomputed activations",
    "tables, token ids, unused gradients",
    "gathered blocks",
    "offload",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpMemory:
    """Bytes of one `part` of a stage's memory that belong to an op, over all of its layers and micro-batches."""

    part: str
    op: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBreakdown:
    """Memory of a device of a stage by op, the largest first; sizes sum to its `total_bytes`. The fullest moment is in
    the backward pass of `moment`, of `micro_batch` through `chunk`, with `in_flight` micro-batches kept (of several
    chunks the mean over layers).
    """

    stage: int
    moment: str
    chunk: int
    micro_batch: int
    in_flight: float
    ops: tuple[OpMemory, ...]


def memory_breakdown(
    model: ModelConfig, parallelism: Parallelism, **options: Any
) -> tuple[StageBreakdown, ...]:
    """The memory of `stage_memory` by op, stages in order; arguments and errors as there."""
    stages = stage_memory(model, parallelism, **options)
    loads, whole = bytes_by_stage(model, parallelism, **options)
    alone = {
        name: bytes_by_stage(model, parallelism, only=name, **options)[1]
        for name in op_names(model, parallelism)
    }
    degrees = parallelism.pp, parallelism.micro_batches, parallelism.virtual_stages
    orders = stage_orders(parallelism.schedule, *degrees)
    peaks = [over.peak_pass for over in memory_over_step(model, parallelism, orders, **options)]
    found = []
    for stage, load, order, peak in zip(stages, loads, orders, peaks, strict=True):
        moment = MOMENTS[int(np.argmax([_at(one, stage.stage) for one in whole.moments]))]
        shares = {
            part: {name: _at(getattr(one, part), stage.stage) for name, one in alone.items()}
            for part in _OF_OPS
        }
        in_use = [_at(one, stage.stage) for one in whole.in_use]
        shares["working"] = dict(zip((f"{moment}: {_IN_USE[0]}", *_IN_USE[1:]), in_use, strict=True))
        shares["workspace"] = {"cuBLAS": float(stage.workspace_bytes)}
        ops = [
            OpMemory(part=part, op=name, size_bytes=size)
            for part in PARTS
            for name, size in _whole_bytes(shares[part], getattr(stage, f"{part}_bytes")).items()
            if size
        ]
        found.append(
            StageBreakdown(
                stage=stage.stage,
                moment=moment,
                chunk=order[peak].chunk,
                micro_batch=order[peak].micro_batch,
                in_flight=sum(load.live_layers) / max(1, sum(load.layers)),
                ops=tuple(sorted(ops, key=lambda one: -one.size_bytes)),
            )
        )
    return tuple(found)


def _at(value: Any, stage: int) -> float:
    return float(np.broadcast_to(value, (stage + 1,))[stage] if np.ndim(value) == 0 else value[stage])


def _whole_bytes(shares: Mapping[str, float], total: int) -> dict[str, int]:
    """Shares as whole bytes that sum to the total, which is rounded up: the ends of their running sum, rounded."""
    ends = np.cumsum(list(shares.values()))
    scale = total / ends[-1] if ends[-1] else 0.0
    rounded = [0, *(round(end * scale) for end in ends.tolist())]
    return {name: rounded[place + 1] - rounded[place] for place, name in enumerate(shares)}
