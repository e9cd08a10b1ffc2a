"""What one update calls for dense parameters and experts, by hand."""

import pytest

from kernelcast.runtime.step.calls import Call, Calls
from kernelcast.runtime.step.groups import ALONE, Group
from kernelcast.runtime.step.layers.update import DataParallel, gradient_bytes, update_of


def ways(zero: int = 0, experts: int = 1, **changes: object) -> tuple[DataParallel, DataParallel]:
    """Of 4 replicas on 2 nodes; experts are held by as many as there are said to be."""
    held = Group(nodes=experts)
    return tuple(
        DataParallel(dp=dp, zero=zero, group=group, bucket_entries=100, role=role, **changes)  # type: ignore[arg-type]
        for dp, group, role in ((4, Group(nodes=2, gpus_per_node=2), "data"), (experts, held, "expert_data"))
    )  # type: ignore[return-value]


def listed(calls: Calls) -> list[tuple[str, tuple[int, ...], int]]:
    return [
        (f"{one.operator}/{one.role}" if one.role else one.operator, one.shape, one.count) for one in calls
    ]


def test_gradients_of_both_are_combined_in_buckets() -> None:
    dense, experts = ways(experts=2)
    found = update_of([(250, dense), (120, experts)], "last_stage", 3)
    assert listed(found.gradients) == [
        ("all_reduce/data", (100, 2, 2), 2),
        ("all_reduce/data", (50, 2, 2), 1),
        ("all_reduce/expert_data", (100, 2, 1), 1),
        ("all_reduce/expert_data", (20, 2, 1), 1),
    ]
    assert listed(found.optimizer) == [
        ("gradient_clip", (370,), 1),
        ("adam/last_stage", (370, 3), 1),
        ("gradient_zero", (370,), 1),
    ]
    assert found.gather == ()


def test_what_a_device_updates_of_shards() -> None:
    # A quarter of 250, rounded up, and half of 120: 123 of 370, of 3 layers one.
    found = update_of(list(zip((250, 120), ways(zero=2, experts=2), strict=True)), "first_stage", 3)
    assert listed(found.optimizer) == [
        ("gradient_clip", (123,), 1),
        ("adam/first_stage", (123, 1), 1),
        ("gradient_zero", (123,), 1),
    ]
    assert listed(found.gather) == [
        ("all_gather/data", (63, 2, 2), 1),
        ("all_gather/expert_data", (60, 2, 1), 1),
    ]
    assert found.gradients == ()
    # 1,230 of 3,700 are a third of 10 layers and a bit.
    found = update_of(list(zip((2500, 1210), ways(zero=2, experts=2), strict=True)), "first_stage", 10)
    assert found.optimizer[1].shape == (625 + 605, 4)


def test_gradients_of_experts_without_replicas_are_scaled_with_the_rest() -> None:
    # Scattered once per update in fp32: two entries of 16 bits each.
    shares = list(zip((250, 120), ways(zero=1, scatters=True, gradient_width=2), strict=True))
    found = update_of(shares, "last_stage", 3)
    assert listed(found.optimizer) == [
        ("gradient_scale", (2 * 370,), 1),
        ("gradient_clip", (2 * (63 + 120),), 1),
        ("adam/last_stage", (63 + 120, 2), 1),
        ("gradient_zero", (2 * 370,), 1),
    ]
    assert listed(found.gradients) == [
        ("reduce_scatter/data", (2 * 100, 2, 2), 2),
        ("reduce_scatter/data", (2 * 50, 2, 2), 1),
    ]
    assert listed(found.gather) == [("all_gather/data", (63, 2, 2), 1)]


def test_a_device_without_replicas_scales_nothing() -> None:
    alone = DataParallel(dp=1, zero=1, group=ALONE, bucket_entries=100, scatters=True)
    assert listed(alone.update("last_stage", 250, 3).calls) == [
        ("gradient_clip", (250,), 1),
        ("adam/last_stage", (250, 3), 1),
        ("gradient_zero", (250,), 1),
    ]


def test_another_optimizer_moves_a_share_of_the_measured_ones_bytes() -> None:
    dense, _ = ways(optimizer_share=0.3)
    # Rounded up: 0.3 of 251 parameters, and of 3 layers.
    [adam] = [one for one in dense.update("last_stage", 251, 3).optimizer if one.operator == "adam"]
    assert adam == Call("adam", "last_stage", (76, 1), 1, adam.direction)


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
    gathered: list[tuple[str, tuple[int, ...], int]],
    scattered: list[tuple[str, tuple[int, ...], int]],
) -> None:
    dense, _ = ways(zero=stage)
    assert listed(dense.gather(90)) == gathered
    assert listed(dense.scatter(90)) == scattered


def test_buckets_that_overlap() -> None:
    # Megatron-LM's: 40 million parameters, or a million per replica where that is more.
    usual, many = ways()[0], DataParallel(dp=41, zero=0, group=Group(nodes=41), bucket_entries=100)
    assert [usual.buckets(one) for one in (0, 1, 40_000_000, 40_000_001)] == [1, 1, 1, 2]
    assert [many.buckets(one) for one in (41_000_000, 41_000_001)] == [1, 2]
    given = ways(zero=1, scatters=True, overlaps_parameters=True, overlap_bucket=30)[0]
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
