"""Checkpoints: their bytes from the memory model, and how long they take to copy, write and load."""

from collections.abc import Mapping
from math import ceil
from typing import Any

from kernelcast.plan.fields import NODE_STORAGE_BYTES_PER_S, PLAN
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.estimate.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint: all bytes, the fullest device's; seconds for which training waits, in the background, to load."""

    mode: str
    total_bytes: int
    device_bytes: int
    copy_s: float
    storage_s: float
    stall_s: float
    write_s: float
    load_s: float


def checkpoint_bytes(estimate: Estimate) -> tuple[int, int]:
    """Bytes of a checkpoint, and those that the fullest device writes: weights, master weights, optimizer states.
    Replicas share the writing, experts' weights are counted as replicated as often as others.
    """
    layout = estimate.parallelism
    copies = max(1, layout.replicas // layout.shards)  # of each of ZeRO's shards
    total = fullest = 0
    for stage in estimate.memory.stages:
        states = stage.optimizer_bytes or stage.host_bytes  # offloaded states lie on the host
        written = stage.weights_bytes / (copies if layout.zero >= 3 else layout.replicas)
        written += states / (copies if layout.zero >= 1 else layout.replicas)
        total += ceil(written * layout.world_size / layout.pp)
        fullest = max(fullest, ceil(written))
    return total, fullest


def checkpoint_of(
    estimate: Estimate,
    own: Mapping[str, Any],
    *,
    nodes: int,
    host_link_bytes_per_s: float | None,
    network_bytes_per_s: float | None = None,
) -> Checkpoint:
    """Times of a checkpoint by the fields of `PLAN` in `own`; a rate is None where it is not known. The copy to the
    host runs at the link's published rate, a neighbour's over the network. UsageError in a neighbour's memory with one
    node.
    """
    mode, total_bytes_per_s = own.get("checkpoint", PLAN["checkpoint"].default), own.get("storage_total")
    total, device = checkpoint_bytes(estimate)
    if mode == "memory" and nodes < 2:
        raise UsageError(
            "checkpoint is memory on one node, expected two nodes or more: a neighbour holds the copy"
        )
    copy_s = device / host_link_bytes_per_s if host_link_bytes_per_s else 0.0
    usual = network_bytes_per_s if mode == "memory" else None
    per_node = own.get("storage_bandwidth") or usual or NODE_STORAGE_BYTES_PER_S
    node_bytes = device * min(estimate.cluster.gpus_per_node, estimate.parallelism.world_size)
    shared_s = total / total_bytes_per_s if total_bytes_per_s and mode != "memory" else 0.0
    storage_s = max(node_bytes / per_node, shared_s)
    is_sync = mode == "sync"
    return Checkpoint(
        mode=mode,
        total_bytes=total,
        device_bytes=device,
        copy_s=copy_s,
        storage_s=storage_s,
        stall_s=own.get("checkpoint_cost", copy_s + (storage_s if is_sync else 0.0)),
        write_s=0.0 if is_sync else storage_s,
        load_s=copy_s + storage_s,
    )
