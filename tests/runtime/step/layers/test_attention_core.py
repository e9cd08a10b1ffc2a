"""Context parallelism by hand: what one of four devices computes and exchanges of a sequence of 32 tokens."""

from typing import Any

import pytest

from kernelcast.runtime import Cluster, ModelConfig, Parallelism
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.step.calls import Call
from kernelcast.runtime.step.layers.attention_core import (
    exchanged,
    exchanged_back,
    fused_core,
    ring,
    visible_keys,
)
from kernelcast.runtime.step.kinds import LayerKind
from kernelcast.runtime.step.layers.sizes import Sizes

SMALL = ModelConfig(
    name="small",
    hidden_size=64,
    sequence_length=32,
    attention_heads=8,
    kv_heads=4,
    layers=2,
    vocabulary_size=100,
)
HEAD = 8


def sizes(how: str, **changes: Any) -> Sizes:
    layout = Parallelism(
        pp=1, tp=1, dp=1, cp=changes.pop("cp", 4), micro_batch=3, micro_batches=1, context_exchange=how
    )
    return Sizes.of(ModelConfig(**{**vars_of(SMALL), **changes}), layout, Cluster(gpus_per_node=4))


def vars_of(model: ModelConfig) -> dict[str, Any]:
    return {name: getattr(model, name) for name in ("name", "hidden_size", "sequence_length", "attention_heads",
            "kv_heads", "layers", "vocabulary_size")}  # fmt: skip


def listed(calls: tuple[Call, ...]) -> list[tuple[str, tuple[int, ...], int]]:
    return [(one.operator, one.shape, one.count) for one in calls if one.count]


def pairs(calls: tuple[Call, ...], heads: int) -> float:
    """Query-key pairs that calls compute, all heads: a causal one has half of its square, with the diagonal."""
    found = 0.0
    for one in calls:
        if one.operator == "flash_attention":
            found += one.count * one.shape[0] * one.shape[1] * (one.shape[1] + 1) / 2 * one.shape[2]
        elif one.operator == "attention_block":
            found += one.count * one.shape[0] * one.shape[1] * one.shape[3] * one.shape[4]
    return found / heads


def test_without_it_attention_is_causal_and_exchanges_nothing() -> None:
    for how in ("ring", "all_to_all", "all_gather"):
        alone = sizes(how, cp=1)
        assert listed(fused_core(alone)) == [("flash_attention", (3, 32, 8, 4, HEAD), 1)]
        assert listed(exchanged(alone)) == listed(exchanged_back(alone)) == []


def test_heads_exchanged_for_tokens() -> None:
    found = sizes("all_to_all")
    # Whole sequences of a quarter of the heads; queries, keys, values and results are copied before and after.
    assert listed(fused_core(found)) == [
        ("flash_attention", (3, 32, 2, 1, HEAD), 1),
        ("copy", (24, 2 * (8 + 2 * 4 + 8) * HEAD), 1),
    ]
    # 24 tokens of 128 entries of queries, keys and values go there, of 64 come back.
    sent = [("all_to_all", (24 * 128, 1, 4), 1), ("all_to_all", (24 * 64, 1, 4), 1)]
    assert listed(exchanged(found)) == listed(exchanged_back(found)) == sent
    assert ring(found, Direction.FORWARD) == ()


def test_a_ring_of_early_and_late_parts() -> None:
    found = sizes("ring")
    # 8 tokens of its own, and 4 keys in the mean for all 8 queries of each of three others.
    assert listed(fused_core(found)) == [
        ("flash_attention", (3, 8, 8, 4, HEAD), 1),
        ("attention_block", (3, 8, 4, 4, 8, 4, HEAD), 3),
    ]
    assert listed(exchanged(found)) == []
    keys_and_values = 2 * 24 * 4 * HEAD
    for direction, entries in (
        (Direction.FORWARD, keys_and_values),
        (Direction.BACKWARD, 2 * keys_and_values),
    ):
        [beside] = ring(found, direction)
        assert listed(beside.collective) == [("point_to_point", (entries, 1, 2), 3)]
        assert [one.operator for one in beside.compute] == ["attention_block"]


def test_gathered_keys() -> None:
    found = sizes("all_gather")
    # 8 queries of the sequence see 16.5 keys of 32 in the mean, rounded to a whole number.
    assert listed(fused_core(found)) == [("attention_block", (3, 8, 32, 16, 8, 4, HEAD), 1)]
    gathered = ("all_gather", (2 * 24 * 4 * HEAD, 1, 4), 1)
    assert listed(exchanged(found)) == [gathered]
    # Gathered again, and their gradients summed and scattered.
    assert listed(exchanged_back(found)) == [
        gathered,
        ("reduce_scatter", (4 * 2 * 24 * 4 * HEAD, 1, 4), 1),
    ]


@pytest.mark.parametrize("how", ["ring", "all_to_all", "all_gather"])
@pytest.mark.parametrize("cp", [1, 2, 4])
def test_all_devices_together_see_every_pair_once(how: str, cp: int) -> None:
    # Zig-zag: every device of cp has as many; all together the causal half of 32 · 32, with its diagonal.
    whole = 3 * 32 * 33 / 2
    assert cp * pairs(fused_core(sizes(how, cp=cp)), heads=8) == pytest.approx(whole, rel=0.05)


def test_windows_and_documents_hide_keys() -> None:
    assert visible_keys(sizes("ring", cp=1)) == 16.5
    assert visible_keys(sizes("ring", cp=1, visible_share=0.5)) == 8.25


@pytest.mark.parametrize(
    ("length", "chunks", "visible"),
    [
        # Windows of 3 over 8 tokens: 1, 2, then 3 six times. In chunks of 3: 1, 2, 3, 1, 2, 3, 1, 2.
        (8, False, 21 / 8),
        (8, True, 15 / 8),
        (9, True, 18 / 9),
    ],
)
def test_keys_in_a_window(length: int, chunks: bool, visible: float) -> None:
    model = ModelConfig(
        **{**vars_of(SMALL), "sequence_length": length}, sliding_window=3, window_chunks=chunks
    )
    found = Sizes(model=model, micro_batch=2).of_kind(LayerKind(window=3))
    assert visible_keys(found) == visible
    assert visible_keys(Sizes(model=model)) == (length + 1) / 2
    # As a fraction of a causal query's, of the keys that there are, rounded.
    [block] = fused_core(found)
    assert (block.operator, block.shape) == (
        "attention_block",
        (2, length, length, round(visible), 8, 4, HEAD),
    )


@pytest.mark.parametrize(("gpus_per_node", "pair"), [(1, (2, 1)), (2, (2, 1)), (4, (1, 2)), (8, (1, 2))])
def test_neighbours_in_a_ring(gpus_per_node: int, pair: tuple[int, int]) -> None:
    # Four devices, on four, two or one node: a message goes between two of them.
    layout = Parallelism(pp=1, tp=1, dp=1, cp=4, micro_batch=3, micro_batches=1, context_exchange="ring")
    found = Sizes.of(SMALL, layout, Cluster(gpus_per_node=gpus_per_node))
    [beside] = ring(found, Direction.FORWARD)
    assert [one.shape[1:] for one in beside.collective] == [pair]


@pytest.mark.parametrize("cp", [2, 4])
def test_heads_are_copied_wherever_they_are_exchanged(cp: int) -> None:
    [attention, copy] = listed(fused_core(sizes("all_to_all", cp=cp)))
    assert attention == ("flash_attention", (3, 32, 8 // cp, 4 // cp, HEAD), 1)
    assert copy == ("copy", (3 * 32 // cp, 2 * (8 + 2 * 4 + 8) * HEAD), 1)
