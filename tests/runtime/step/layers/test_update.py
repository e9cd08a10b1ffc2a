"""What one update calls for dense parameters and experts, by hand."""

from dataclasses import replace

import pytest

from kernelcast.runtime import Parallelism
from kernelcast.runtime.step.groups import ALONE, Group
from kernelcast.runtime.step.op import COMPUTED_ONCE, Call, Component, Ops
from kernelcast.runtime.step.update import DataParallel, gradient_bytes, update_ops
from tests.runtime.step.layers.conftest import Listed, listed


def ways(*, experts: int = 1, **fields: object) -> tuple[DataParallel, DataParallel]:
    """Of 4 replicas on 2 nodes; `experts` devices hold the same experts."""
    groups = (4, Group(nodes=2, gpus_per_node=2), "data"), (experts, Group(nodes=experts), "expert_data")
    dense, of_experts = (
        DataParallel(
            layout=Parallelism.unchecked(**fields),
            replicas=replicas,
            group=group,
            bucket_entries=100,
            element_bytes=2,
            role=role,
        )
        for replicas, group, role in groups
    )
    return dense, of_experts


def parts(ops: Ops) -> tuple[Listed, Listed, Listed]:
    """Calls of an update: of gradients, of what computes, of parameters."""
    gradients, computed, gathered = (
        listed(call for one in ops if one.name in names for call in one.forward())
        for names in ({Component.ALL_REDUCE}, COMPUTED_ONCE, {Component.ALL_GATHER})
    )
    return gradients, computed, gathered


def test_gradients_of_both_are_combined_in_buckets() -> None:
    dense, experts = ways(experts=2, zero=0)
    assert parts(update_ops([(250, dense), (120, experts)], "last_stage", 3)) == (
        [
            ("all_reduce/data", (100, 2, 2), 2),
            ("all_reduce/data", (50, 2, 2), 1),
            ("all_reduce/expert_data", (100, 2, 1), 1),
            ("all_reduce/expert_data", (20, 2, 1), 1),
        ],
        [("gradient_clip", (370,), 1), ("adam/last_stage", (370, 3), 1), ("gradient_zero", (370,), 1)],
        [],
    )


def test_what_a_device_updates_of_shards() -> None:
    dense, experts = ways(zero=2, experts=2)
    # A quarter of 250, rounded up, and half of 120: 123 of 370, of 3 layers one.
    assert parts(update_ops([(250, dense), (120, experts)], "first_stage", 3)) == (
        [],
        [("gradient_clip", (123,), 1), ("adam/first_stage", (123, 1), 1), ("gradient_zero", (123,), 1)],
        [("all_gather/data", (63, 2, 2), 1), ("all_gather/expert_data", (60, 2, 1), 1)],
    )
    # 1,230 of 3,700 are a third of 10 layers and a bit.
    _, computed, _ = parts(update_ops([(2500, dense), (1210, experts)], "first_stage", 10))
    assert computed[1] == ("adam/first_stage", (625 + 605, 4), 1)


def test_gradients_of_experts_without_replicas_are_scaled_with_the_rest() -> None:
    # Scattered once per update in fp32: two entries of 16 bits each.
    dense, experts = ways(zero=1, gradient_collective="reduce_scatter", reduce_dtype="float32")
    assert parts(update_ops([(250, dense), (120, experts)], "last_stage", 3)) == (
        [("reduce_scatter/data", (2 * 100, 2, 2), 2), ("reduce_scatter/data", (2 * 50, 2, 2), 1)],
        [
            ("gradient_scale", (2 * 370,), 1),
            ("gradient_clip", (2 * (63 + 120),), 1),
            ("adam/last_stage", (63 + 120, 2), 1),
            ("gradient_zero", (2 * 370,), 1),
        ],
        [("all_gather/data", (63, 2, 2), 1)],
    )


def test_a_device_without_replicas_scales_nothing() -> None:
    alone = replace(ways(zero=1, gradient_collective="reduce_scatter")[0], replicas=1, group=ALONE)
    assert parts(update_ops([(250, alone)], "last_stage", 3)) == (
        [],
        [("gradient_clip", (250,), 1), ("adam/last_stage", (250, 3), 1), ("gradient_zero", (250,), 1)],
        [],
    )


def test_the_part_of_the_optimizer_that_a_device_runs() -> None:
    dense, _ = ways(zero=0, offload_optimizer=0.7)
    # Rounded up: 0.3 of 251 parameters, and of 3 layers.
    [adam] = [one.call for one in update_ops([(251, dense)], "last_stage", 3) if one.name == "optimizer"]
    assert adam == Call("adam", "last_stage", (76, 1))


@pytest.mark.parametrize(
    ("stage", "gathered", "scattered"),
    [
        (0, [], []),
        (1, [], []),
        (2, [], [("reduce_scatter/data", (90, 2, 2), 1)]),
        (3, [("all_gather/data", (23, 2, 2), 1)], [("reduce_scatter/data", (90, 2, 2), 1)]),
    ],
)
def test_a_block(
    stage: int,
    gathered: Listed,
    scattered: Listed,
) -> None:
    dense, _ = ways(zero=stage)
    assert listed(dense.gather(90)) == gathered
    assert listed(dense.scatter(90)) == scattered


def test_buckets_that_overlap() -> None:
    # Megatron-LM's: 40 million parameters, or a million per replica where that is more.
    usual, _ = ways(zero=0)
    many = replace(usual, replicas=41, group=Group(nodes=41))
    assert [usual.buckets(one) for one in (0, 1, 40_000_000, 40_000_001)] == [1, 1, 1, 2]
    assert [many.buckets(one) for one in (41_000_000, 41_000_001)] == [1, 2]
    given, _ = ways(zero=1, gradient_collective="reduce_scatter", overlap_parameters=True, overlap_bucket=30)
    assert given.buckets(61) == 3
    # Gathers overlap: buckets of 30 are cut into shards of 8. Scatters do not.
    assert listed(given.gathered_once(120)) == [
        ("all_gather/data", (8, 2, 2), 3),
        ("all_gather/data", (6, 2, 2), 1),
    ]
    assert listed(given.combined(120)) == [
        ("reduce_scatter/data", (100, 2, 2), 1),
        ("reduce_scatter/data", (20, 2, 2), 1),
    ]


def test_bytes_of_a_gradient() -> None:
    assert [gradient_bytes("same", size) for size in (2, 4, 8)] == [2, 4, 8]
    assert [gradient_bytes("float32", size) for size in (2, 4, 8)] == [4, 4, 8]
