"""How communication groups lie on nodes of g devices, a collective's layout (docs/method.md, A step)."""

from typing import Any

import numpy as np

from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.request.layout import Cluster, Parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One communication group: `nodes` nodes with `gpus_per_node` of its processes on each."""

    nodes: int = 1
    gpus_per_node: int = 1

    @property
    def processes(self) -> int:
        return self.nodes * self.gpus_per_node


ALONE = Group()
"""A device without others."""


def tensor_group(parallelism: Parallelism, cluster: Cluster) -> Group:
    """The tp group: min(tp, g) devices of a node, on tp / that many nodes."""
    return _spread(parallelism.tp, cluster.gpus_per_node)


def data_group(parallelism: Parallelism, cluster: Cluster) -> Group:
    """The replicas of a device: max(1, g // tp) of a node, at most all of them, on replicas / that many nodes."""
    return _replicas(
        parallelism, cluster, parallelism.replicas, max(1, cluster.gpus_per_node // parallelism.tp)
    )


def shard_groups(parallelism: Parallelism, cluster: Cluster) -> tuple[Group, Group]:
    """The replicas that share one set of ZeRO's shards, and those that hold copies of the same shard.

    Shards lie on neighbours, copies a group of shards apart (torch's HSDP mesh, Megatron-LM's optimizer instances).
    """
    shards, per_node = parallelism.shards, max(1, cluster.gpus_per_node // parallelism.tp)
    if shards == parallelism.replicas:
        return data_group(parallelism, cluster), ALONE
    return _spread(shards, per_node), _spread(parallelism.replicas // shards, max(1, per_node // shards))


def shards_span_nodes(shards: Any, tp: Any, cluster: Cluster) -> Any:
    """Whether ZeRO's shards lie on several nodes (`shard_groups`); of arrays, for each layout."""
    return shards > np.maximum(1, cluster.gpus_per_node // tp)


def context_group(parallelism: Parallelism, cluster: Cluster) -> Group:
    """The devices that share a sequence: next to each other, a tensor-parallel group apart."""
    return _spread(parallelism.cp, max(1, cluster.gpus_per_node // parallelism.tp))


def expert_groups(parallelism: Parallelism, cluster: Cluster) -> tuple[Group, Group]:
    """The devices that share a layer's experts, and those that share one expert, which are neighbours."""
    per_node = max(1, cluster.gpus_per_node // parallelism.expert_tp)
    return _spread(parallelism.ep, per_node), _spread(parallelism.expert_tp, cluster.gpus_per_node)


def expert_data_group(parallelism: Parallelism, cluster: Cluster) -> Group:
    """The devices that hold the same experts, a group of all experts apart."""
    together = parallelism.ep * parallelism.expert_tp
    per_node = max(1, cluster.gpus_per_node // together)
    return _replicas(parallelism, cluster, parallelism.expert_replicas, per_node)


def pipeline_pair(parallelism: Parallelism, cluster: Cluster) -> Group:
    """Two neighbouring stages: two nodes with a device each when the job spans nodes, else two of one."""
    if parallelism.world_size > cluster.gpus_per_node:
        return Group(nodes=2, gpus_per_node=1)
    return Group(nodes=1, gpus_per_node=2)


def _replicas(parallelism: Parallelism, cluster: Cluster, replicas: int, most_per_node: int) -> Group:
    """Replicas of one stage; a second copy of the model is far away, on other nodes if the job has several."""
    of_stage = _spread(replicas // parallelism.copies, most_per_node)
    if parallelism.world_size > cluster.gpus_per_node:
        return replace(of_stage, nodes=parallelism.copies * of_stage.nodes)
    return replace(of_stage, gpus_per_node=parallelism.copies * of_stage.gpus_per_node)


def _spread(processes: int, most_per_node: int) -> Group:
    # Where the degree does not divide, the largest number per node that does: the process count, which
    # decides a collective's time first, stays right.
    per_node = next(size for size in range(min(processes, most_per_node), 0, -1) if processes % size == 0)
    return Group(nodes=processes // per_node, gpus_per_node=per_node)
