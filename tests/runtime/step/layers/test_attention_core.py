"""Context parallelism by hand: what one of four devices computes and exchanges of a sequence of 32 tokens."""

from dataclasses import replace
from typing import Any

import pytest

from kernelcast.runtime import ModelConfig
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.step.chunks import LayerKind
from kernelcast.runtime.step.layers.attention_core import attention_core, visible_keys
from kernelcast.runtime.step.op import Calls, Overlap, computing
from kernelcast.runtime.step.passes import Passes
from kernelcast.runtime.step.sizes import Sizes
from tests.runtime.step.layers.conftest import collectives, listed, sized

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


def sizes(how: str, *, cp: int = 4, gpus_per_node: int = 4, **of_model: Any) -> Sizes:
    return sized(
        replace(SMALL, **of_model),
        gpus_per_node=gpus_per_node,
        cp=cp,
        micro_batch=3,
        context_exchange=how,
    )


def pairs(calls: Calls, heads: int) -> float:
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
        ops = attention_core(sizes(how, cp=1))
        assert listed(computing(ops)) == [("flash_attention", (3, 32, 8, 4, HEAD), 1)]
        passes = Passes(ops)
        assert not collectives((*passes.forward.collectives, *passes.backward.collectives))


def test_heads_exchanged_for_tokens() -> None:
    ops = attention_core(sizes("all_to_all"))
    # Whole sequences of a quarter of the heads; queries, keys, values and results are copied before and after.
    assert listed(computing(ops)) == [
        ("flash_attention", (3, 32, 2, 1, HEAD), 1),
        ("copy", (24, 2 * (8 + 2 * 4 + 8) * HEAD), 1),
    ]
    # 24 tokens of 128 entries of queries, keys and values go there, of 64 come back.
    sent = [("all_to_all/context", (24 * 64, 1, 4), 1), ("all_to_all/context", (24 * 128, 1, 4), 1)]
    passes = Passes(ops)
    assert collectives(passes.forward.calls) == collectives(passes.backward.calls) == sent
    assert not passes.forward.overlapped


def test_a_ring_of_early_and_late_parts() -> None:
    ops = attention_core(sizes("ring"))
    # 8 tokens of its own, and 4 keys in the mean for all 8 queries of each of three others.
    assert listed(computing(ops)) == [
        ("flash_attention", (3, 8, 8, 4, HEAD), 1),
        ("attention_block", (3, 8, 4, 4, 8, 4, HEAD), 3),
    ]
    keys_and_values = 2 * 24 * 4 * HEAD
    passes = Passes(ops)
    for one, direction, entries in (
        (passes.forward, Direction.FORWARD, keys_and_values),
        (passes.backward, Direction.BACKWARD, 2 * keys_and_values),
    ):
        [(overlap, pair)] = one.overlapped.items()
        assert overlap == Overlap(("attention_of_others",), direction)
        assert listed(pair.collectives) == [("point_to_point/context", (entries, 1, 2), 3)]
        assert [call.operator for call in pair.compute] == ["attention_block"]
        assert not collectives(one.calls)


def test_gathered_keys() -> None:
    ops = attention_core(sizes("all_gather"))
    # 8 queries of the sequence see 16.5 keys of 32 in the mean, rounded to a whole number.
    assert listed(computing(ops)) == [("attention_block", (3, 8, 32, 16, 8, 4, HEAD), 1)]
    gathered = ("all_gather/context", (2 * 24 * 4 * HEAD, 1, 4), 1)
    passes = Passes(ops)
    assert collectives(passes.forward.calls) == [gathered]
    # Gathered again, and their gradients summed and scattered.
    summed = ("reduce_scatter/context", (4 * 2 * 24 * 4 * HEAD, 1, 4), 1)
    assert collectives(passes.backward.calls) == [gathered, summed]


@pytest.mark.parametrize("how", ["ring", "all_to_all", "all_gather"])
@pytest.mark.parametrize("cp", [1, 2, 4])
def test_all_devices_together_see_every_pair_once(how: str, cp: int) -> None:
    # Zig-zag: every device of cp has as many; all together the causal half of 32 · 32, with its diagonal.
    whole = 3 * 32 * 33 / 2
    found = computing(attention_core(sizes(how, cp=cp)))
    assert cp * pairs(found, heads=8) == pytest.approx(whole, rel=0.05)


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
    whole = sizes("ring", cp=1, sequence_length=length, sliding_window=3, window_chunks=chunks)
    found = whole.of_kind(LayerKind(window=3))
    assert visible_keys(found) == visible
    assert visible_keys(whole) == (length + 1) / 2
    # The visible keys of a causal query, as a fraction of all keys, rounded.
    shape = (3, length, length, round(visible), 8, 4, HEAD)
    assert listed(computing(attention_core(found))) == [("attention_block", shape, 1)]


@pytest.mark.parametrize(("gpus_per_node", "pair"), [(1, (2, 1)), (2, (2, 1)), (4, (1, 2)), (8, (1, 2))])
def test_neighbours_in_a_ring(gpus_per_node: int, pair: tuple[int, int]) -> None:
    # Four devices, on four, two or one node: a message goes between two of them.
    found = Passes(attention_core(sizes("ring", gpus_per_node=gpus_per_node))).forward
    assert [one.shape[1:] for one in found.collectives] == [pair]


@pytest.mark.parametrize("cp", [2, 4])
def test_heads_are_copied_wherever_they_are_exchanged(cp: int) -> None:
    [attention, copy] = listed(computing(attention_core(sizes("all_to_all", cp=cp))))
    assert attention == ("flash_attention", (3, 32, 8 // cp, 4 // cp, HEAD), 1)
    assert copy == ("copy", (3 * 32 // cp, 2 * (8 + 2 * 4 + 8) * HEAD), 1)
