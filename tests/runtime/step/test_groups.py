"""Groups on nodes, by hand from docs/method.md, A step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import Cluster, Parallelism, UsageError
from kernelcast.runtime.step.groups import (
    context_group,
    data_group,
    expert_data_group,
    expert_groups,
    pipeline_pair,
    shard_groups,
    shards_span_nodes,
    tensor_group,
)


def layout(pp: int, tp: int, dp: int) -> Parallelism:
    return Parallelism(pp=pp, tp=tp, dp=dp, micro_batch=1, micro_batches=1)


@pytest.mark.parametrize(
    ("degrees", "gpus_per_node", "tensor", "data", "pair"),
    [
        ((4, 4, 8), 4, (1, 4), (8, 1), (2, 1)),
        ((4, 8, 4), 4, (2, 4), (4, 1), (2, 1)),
        ((4, 2, 2), 4, (1, 2), (1, 2), (2, 1)),
        ((1, 1, 8), 4, (1, 1), (2, 4), (2, 1)),
        ((2, 1, 1), 4, (1, 1), (1, 1), (1, 2)),
        ((2, 2, 2), 8, (1, 2), (1, 2), (1, 2)),
        ((2, 4, 16), 8, (1, 4), (8, 2), (2, 1)),
        ((1, 1, 6), 4, (1, 1), (2, 3), (2, 1)),  # 4 do not divide 6, 3 do
        ((1, 6, 1), 4, (2, 3), (1, 1), (2, 1)),
        ((2, 1, 1), 1, (1, 1), (1, 1), (2, 1)),
    ],
)
def test_groups(
    degrees: tuple[int, int, int],
    gpus_per_node: int,
    tensor: tuple[int, int],
    data: tuple[int, int],
    pair: tuple[int, int],
) -> None:
    job, cluster = layout(*degrees), Cluster(gpus_per_node=gpus_per_node)
    found = [
        (group.nodes, group.gpus_per_node)
        for group in (tensor_group(job, cluster), data_group(job, cluster), pipeline_pair(job, cluster))
    ]
    assert found == [tensor, data, pair]


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64), st.integers(1, 16))
def test_groups_have_as_many_processes_as_their_degree(pp: int, tp: int, dp: int, gpus_per_node: int) -> None:
    job, cluster = layout(pp, tp, dp), Cluster(gpus_per_node=gpus_per_node)
    assert tensor_group(job, cluster).processes == tp
    assert data_group(job, cluster).processes == dp
    assert (
        max(tensor_group(job, cluster).gpus_per_node, data_group(job, cluster).gpus_per_node) <= gpus_per_node
    )


@pytest.mark.parametrize(
    ("tp", "dp", "shard_group", "shard", "copies"),
    [
        (1, 32, 8, (1, 8), (4, 1)),  # sharded inside of nodes, copied across them
        (1, 32, 4, (1, 4), (4, 2)),  # two groups on every node
        (1, 32, 16, (2, 8), (2, 1)),
        (2, 16, 4, (1, 4), (4, 1)),
        (1, 32, 32, (4, 8), (1, 1)),
        (1, 32, 0, (4, 8), (1, 1)),
        (1, 32, 1, (1, 1), (4, 8)),  # nothing is sharded
        (1, 1, 8, (1, 1), (1, 1)),
    ],
)
def test_shards_and_their_copies(
    tp: int, dp: int, shard_group: int, shard: tuple[int, int], copies: tuple[int, int]
) -> None:
    job = Parallelism(pp=1, tp=tp, dp=dp, micro_batch=1, micro_batches=1, shard_group=shard_group)
    groups = shard_groups(job, Cluster(gpus_per_node=8))
    assert [(group.nodes, group.gpus_per_node) for group in groups] == [shard, copies]
    assert job.shards == groups[0].processes


def test_shards_on_several_nodes() -> None:
    # 8 / tp neighbours of a shard are on a node, one where tp is larger than a node.
    cluster = Cluster(gpus_per_node=8)
    assert shards_span_nodes(np.array([8, 9, 4, 5, 1, 2]), np.array([1, 1, 2, 2, 16, 16]), cluster).tolist() == [
        False, True, False, True, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize(("gpus_per_node", "expected"), [(16, (1, 8)), (8, (1, 8)), (4, (2, 4)), (2, (4, 2))])
def test_replicas_of_a_second_copy_of_the_model(gpus_per_node: int, expected: tuple[int, int]) -> None:
    # Two stages of four devices, and both copies on each: eight hold the same, of two copies' four.
    job = Parallelism(pp=2, tp=1, dp=4, micro_batch=1, micro_batches=4, schedule="dualpipe")
    group = data_group(job, Cluster(gpus_per_node=gpus_per_node))
    assert (group.nodes, group.gpus_per_node) == expected


def test_a_shard_group_divides_the_replicas() -> None:
    with pytest.raises(UsageError, match="shard_group is 3, expected a divisor of the 8 replicas"):
        Parallelism(pp=1, tp=1, dp=8, micro_batch=1, micro_batches=1, shard_group=3)


@pytest.mark.parametrize(
    ("degrees", "gpus_per_node", "experts", "shared", "same"),
    [
        # dp, ep, expert_tp; the group over experts, that of one cut expert, and of devices that hold the same experts.
        ((16, 4, 2), 8, (1, 4), (1, 2), (2, 1)),
        ((16, 2, 2), 8, (1, 2), (1, 2), (2, 2)),
        ((16, 8, 1), 4, (2, 4), (1, 1), (2, 1)),
        ((16, 2, 1), 4, (1, 2), (1, 1), (4, 2)),
        ((16, 1, 8), 4, (1, 1), (2, 4), (2, 1)),
        ((2, 2, 1), 1, (2, 1), (1, 1), (1, 1)),
    ],
)
def test_groups_of_experts(
    degrees: tuple[int, int, int],
    gpus_per_node: int,
    experts: tuple[int, int],
    shared: tuple[int, int],
    same: tuple[int, int],
) -> None:
    dp, ep, expert_tp = degrees
    job = Parallelism(pp=1, tp=1, dp=dp, ep=ep, expert_tp=expert_tp, micro_batch=1, micro_batches=1)
    cluster = Cluster(gpus_per_node=gpus_per_node)
    groups = (*expert_groups(job, cluster), expert_data_group(job, cluster))
    assert [(group.nodes, group.gpus_per_node) for group in groups] == [experts, shared, same]


@pytest.mark.parametrize(
    ("tp", "cp", "gpus_per_node", "expected"),
    [
        (1, 4, 8, (1, 4)),
        (2, 4, 8, (1, 4)),
        (4, 4, 8, (2, 2)),
        (8, 4, 8, (4, 1)),
        (16, 4, 8, (4, 1)),
        (1, 1, 8, (1, 1)),
    ],
)
def test_a_sequence_is_shared_next_to_tensor_parallel_groups(
    tp: int, cp: int, gpus_per_node: int, expected: tuple[int, int]
) -> None:
    job = Parallelism(pp=1, tp=tp, cp=cp, dp=2, micro_batch=1, micro_batches=1)
    group = context_group(job, Cluster(gpus_per_node=gpus_per_node))
    assert (group.nodes, group.gpus_per_node) == expected
