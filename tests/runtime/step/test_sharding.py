"""What ZeRO stages call to keep parameters, gradients and the optimizer's states in shards, by hand."""

from typing import Any

import pytest

from kernelcast.runtime import Cluster, ModelConfig, Parallelism
from kernelcast.runtime.estimate.pricing import ON_LINKS, Part, What
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.step.decomposition import FIRST, LAST, Decomposition, decompose
from kernelcast.runtime.step.groups import shards_span_nodes
from kernelcast.runtime.step.op import COMPUTED_ONCE, Component
from tests.runtime.step.published_jobs import GPT_20B, PAPER, ahead, back, listed, named, taken_apart, updated

GRADIENTS, OPTIMIZER, GATHERED = (Component.ALL_REDUCE,), tuple(COMPUTED_ONCE), (Component.ALL_GATHER,)
LAYER = "layer 0"


def sharded(gpus_per_node: int = 4, **layout: Any) -> Decomposition:
    return taken_apart(GPT_20B, PAPER | layout, gpus_per_node=gpus_per_node)


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        (0, [("all_reduce/data", 1_097_430_528), ("adam/last_stage", 1_097_430_528)]),
        (
            1,
            [
                ("all_reduce/data", 1_097_430_528),
                ("adam/last_stage", 1_097_430_528),
                ("all_gather/data", 137_178_816),
            ],
        ),
        (
            2,
            [
                ("adam/last_stage", 137_178_816),
                ("all_gather/data", 137_178_816),
            ],
        ),
        (3, [("adam/last_stage", 137_178_816)]),
    ],
)
def test_updates_under_zero(zero: int, expected: list[tuple[str, int]]) -> None:
    # The last stage: 9 layers and the logits; 1,097,430,528 / 8 = 137,178,816 on a shard, 9 / 8 layers.
    parts = sharded(zero=zero)
    last = parts.stages[-1]
    assert [(named(call), call.shape[0]) for call in listed(updated(parts, last))] == expected
    computed = updated(parts, last, *OPTIMIZER)
    [optimizer] = listed(computed)
    assert optimizer.shape[1] == (9 if zero < 2 else 2)
    # Clipping and zeroing go over what the optimizer goes over.
    assert [(call.operator, call.shape) for call in computed if call is not optimizer] == [
        ("gradient_clip", optimizer.shape[:1]),
        ("gradient_zero", optimizer.shape[:1]),
    ]


def test_megatrons_distributed_optimizer() -> None:
    parts = sharded(zero=1, gradient_collective="reduce_scatter", reduce_dtype="float32")
    # Gradients come as shards, which are clipped and updated; the buffer of all is set to zero.
    assert [(named(call), call.shape[0]) for call in updated(parts, parts.stages[-1])] == [
        ("reduce_scatter/data", 2 * 1_097_430_528),
        ("gradient_scale", 2 * 1_097_430_528),
        ("gradient_clip", 2 * 137_178_816),
        ("adam/last_stage", 137_178_816),
        ("gradient_zero", 2 * 1_097_430_528),
        ("all_gather/data", 137_178_816),
    ]
    # Other stages of ZeRO have one way only.
    for zero in (0, 2, 3):
        ways = [sharded(zero=zero, gradient_collective=way) for way in ("all_reduce", "reduce_scatter")]
        assert ways[0].update(ways[0].stages[0]) == ways[1].update(ways[1].stages[0])


def test_buckets_that_overlap() -> None:
    parts = sharded(
        zero=1, gradient_collective="reduce_scatter", overlap_gradients=True, overlap_parameters=True
    )
    gradients, gathered = (updated(parts, parts.stages[-1], *one) for one in (GRADIENTS, GATHERED))
    # Megatron-LM's 40 million parameters: 27 whole buckets of 1,097,430,528, and shards of an eighth of one.
    assert [(call.shape[0], call.count) for call in gradients] == [(40_000_000, 27), (17_430_528, 1)]
    assert [(call.shape[0], call.count) for call in gathered] == [(5_000_000, 27), (2_178_816, 1)]
    assert parts.data_parallel.buckets(1_097_430_528) == 28
    many = sharded(zero=1, overlap_gradients=True, dp=100, overlap_bucket=0)
    assert updated(many, many.stages[-1], *GRADIENTS)[0].shape[0] == 100_000_000


def test_hybrid_sharding() -> None:
    # 8 replicas, one per node of 4 with tp 4: shards over 4 of them, two copies.
    parts = sharded(zero=3, shard_group=4)
    gather, scatter = parts.shards[LAYER]
    shard = gather[0].shape[0]
    assert [(named(call), *call.shape) for call in gather] == [("all_gather/data", shard, 4, 1)]
    assert [(named(call), *call.shape) for call in scatter] == [
        ("reduce_scatter/data", 4 * shard, 4, 1),
        ("all_reduce/data", shard, 2, 1),
    ]
    [optimizer] = listed(updated(parts, parts.stages[-1], *OPTIMIZER))
    assert optimizer.shape == (-(-1_097_430_528 // 4), 3)
    # ZeRO-1: the optimizer's instances of Megatron-LM.
    once = sharded(zero=1, shard_group=4, gradient_collective="reduce_scatter")
    assert [named(call) for call in updated(once, once.stages[-1], *GRADIENTS, *GATHERED)] == [
        "reduce_scatter/data",
        "all_reduce/data",
        "all_gather/data",
    ]
    # Over all replicas it is what it was.
    assert sharded(zero=3, shard_group=8).shards == sharded(zero=3).shards


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_gradients_reduced_in_fp32_are_twice_as_many_bytes(zero: int) -> None:
    narrow, wide = (sharded(zero=zero, reduce_dtype=dtype) for dtype in ("same", "float32"))
    # A bucket holds as many gradients, which are twice the bytes; parameters are gathered as before.
    before, after = (updated(one, one.stages[0], *GRADIENTS, *OPTIMIZER) for one in (narrow, wide))
    for one, other in zip(before, after, strict=True):
        assert other.shape[0] == (1 if one.operator == "adam" else 2) * one.shape[0]
    assert updated(narrow, narrow.stages[0], *GATHERED) == updated(wide, wide.stages[0], *GATHERED)
    assert narrow.shards[LAYER][0] == wide.shards[LAYER][0]
    scattered = [[call.shape[0] for call in parts.shards[LAYER][1]] for parts in (narrow, wide)]
    assert scattered[1] == [2 * size for size in scattered[0]]
    assert bool(scattered[0]) == (zero >= 2)


@pytest.mark.parametrize(("reduce_dtype", "width"), [("same", 1), ("float32", 2)])
def test_tied_embeddings_are_summed_between_the_ends(reduce_dtype: str, width: int) -> None:
    tied = {True: GPT_20B | {"tied_embeddings": True}, False: GPT_20B}

    def gradients(model: dict[str, Any], **layout: Any) -> list[list[tuple[int, ...]]]:
        parts = decompose(
            model=ModelConfig(**model),
            parallelism=Parallelism(**PAPER | {"reduce_dtype": reduce_dtype} | layout),
            cluster=Cluster(gpus_per_node=4),
            bucket_entries=1_260_000_000,
        )
        return [[call.shape for call in updated(parts, stage, *GRADIENTS)] for stage in parts.stages]

    for zero in (1, 2):
        own, plain = (gradients(tied[is_tied], zero=zero) for is_tied in (True, False))
        # 50,688 / 4 rows of 6,144, between two nodes; the stages between have no embedding.
        ends = [(width * 12_672 * 6_144, 2, 1)]
        assert own == [plain[0] + ends, *plain[1:-1], plain[-1] + ends]
    # A single stage has one matrix.
    assert gradients(tied[True], pp=1, dp=32) != gradients(tied[False], pp=1, dp=32)
    assert [len(calls) for calls in gradients(tied[True], pp=1, dp=32)] == [
        len(calls) for calls in gradients(tied[False], pp=1, dp=32)
    ]


def test_tied_embeddings_wait_for_all_gradients_that_overlap() -> None:
    layout = PAPER | {"zero": 1, "overlap_gradients": True}
    tied, plain = (taken_apart(GPT_20B | {"tied_embeddings": one}, layout) for one in (True, False))
    for stage, is_end in zip(tied.stages, (True, False, False, True), strict=True):
        own, other = (updated(parts, stage, *OPTIMIZER) for parts in (tied, plain))
        assert updated(tied, stage, *GRADIENTS) == updated(plain, stage, *GRADIENTS)
        sums = own[: len(own) - len(other)]
        assert own[len(sums) :] == other
        assert [(named(call), call.shape) for call in sums] == [
            ("all_reduce/data", (12_672 * 6_144, 2, 1))
        ] * is_end


def test_training_in_fp32_reduces_the_same_bytes() -> None:
    for element_bytes, same in ((2, False), (4, True)):
        found = [
            decompose(
                model=ModelConfig(**GPT_20B),
                parallelism=Parallelism(**PAPER, reduce_dtype=dtype),
                cluster=Cluster(gpus_per_node=4),
                bucket_entries=1_260_000_000,
                element_bytes=element_bytes,
            )
            for dtype in ("same", "float32")
        ]
        updates = [updated(parts, parts.stages[0], *GRADIENTS) for parts in found]
        assert (updates[0] == updates[1]) == same


def test_fully_sharded_blocks_fetch_their_parameters() -> None:
    parts = sharded(zero=3)
    # A layer of 113,284,608 parameters on a device, the embedding 12,672 · 6,144 and the logits with a norm.
    layer, embedding, logits = 113_284_608, 77_856_768, 77_869_056
    for block, parameters in ((LAYER, layer), (FIRST, embedding), (LAST, logits)):
        gather, scatter = parts.shards[block]
        assert [(named(call), call.shape, call.count) for call in gather] == [
            ("all_gather/data", (parameters // 8, 8, 1), 1)
        ]
        assert [(named(call), call.shape, call.count) for call in scatter] == [
            ("reduce_scatter/data", (parameters, 8, 1), 1)
        ]
    # Every pass of a layer fetches its parameters, and the backward pass gives its gradients away.
    for component, name in (
        (Component.GATHER_FORWARD, "all_gather/data"),
        (Component.GATHER_BACKWARD, "all_gather/data"),
        (Component.SCATTER, "reduce_scatter/data"),
    ):
        calls = [call for found, call in parts.calls(0) if found is component]
        assert {(named(call), call.direction) for call in calls} == {(name, Direction.ONCE)}
        assert sum(call.count for call in calls) == 12
    assert parts.is_sharded
    for zero in (2, 3):
        alone = sharded(zero=zero, dp=1)
        assert not alone.is_sharded
        assert alone.shards[LAYER] == ((), ())


def test_gradients_that_are_kept_in_shards_are_scattered_in_every_micro_batch() -> None:
    shared, parts = (sharded(zero=zero) for zero in (3, 2))
    for block in (LAYER, FIRST, LAST):
        assert parts.shards[block] == ((), shared.shards[block][1])
        assert shared.shards[block][1]
    assert parts.is_sharded


@pytest.mark.parametrize(
    ("dp", "gpus_per_node", "shared"),
    [(4, 8, "all"), (8, 4, "none"), (8, 1, "all"), (1, 8, "all")],
)
def test_collectives_on_the_links_of_the_shards(dp: int, gpus_per_node: int, shared: str) -> None:
    # Groups of 2 for tensors: in a node with the replicas, or not; with a device per node everything is between them.
    parts = sharded(gpus_per_node, tp=2, dp=dp, zero=3)
    spans = shards_span_nodes(dp, 2, parts.cluster)
    assert spans == (parts.data_parallel.group.nodes > 1)
    links = ON_LINKS.parts(parts)
    whats = (
        (What.FORWARD_BETWEEN, What.BACKWARD_BETWEEN)
        if spans
        else (What.FORWARD_INSIDE, What.BACKWARD_INSIDE)
    )
    for name, block in parts.blocks.items():
        for own, what in zip((ahead(block), back(block)), whats, strict=True):
            tensor = tuple(one for one in own if one.role == "tensor")
            assert tensor or name != LAYER
            assert links[Part(name, what)] == (tensor if shared == "all" else ())
