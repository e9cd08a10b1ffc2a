"""What one device holds of a model's sizes."""

from dataclasses import replace

import numpy as np
import pytest

from kernelcast.runtime import ModelConfig
from kernelcast.runtime.step.calls import Call
from kernelcast.runtime.step.groups import Group
from kernelcast.runtime.step.kinds import DENSE, LayerKind
from kernelcast.runtime.step.layers.sizes import Sizes
from kernelcast.runtime.step.layers.transformer_layer import TransformerLayer

MODEL = ModelConfig(
    name="any",
    hidden_size=5120,
    sequence_length=100,
    attention_heads=32,
    kv_heads=8,
    layers=1,
    vocabulary_size=1000,
    attention="unfused",
)
NAMES = (
    "local_length",
    "tokens",
    "local_tokens",
    "heads",
    "kv_heads",
    "attention_width",
    "kv_width",
    "qkv_width",
    "mlp_width",
    "vocabulary",
)


def test_heads_divide_the_hidden_size_unless_their_size_is_given() -> None:
    usual = Sizes(model=MODEL, tp=4)
    assert (usual.heads, usual.kv_heads) == (8, 2)
    assert (usual.attention_width, usual.kv_width, usual.qkv_width) == (1280, 320, 1920)
    wide = Sizes(model=replace(MODEL, head_size=128), tp=4)
    assert (wide.attention_width, wide.kv_width, wide.qkv_width) == (1024, 256, 1536)


def test_by_hand(llama: Sizes, llama_cut: Sizes, gpt: Sizes) -> None:
    assert [getattr(llama, name) for name in NAMES] == [16, 48, 48, 4, 2, 24, 12, 48, 20, 256]
    assert [getattr(llama_cut, name) for name in NAMES] == [8, 48, 24, 4, 2, 24, 12, 48, 20, 256]
    assert [getattr(gpt, name) for name in NAMES] == [5, 15, 15, 2, 2, 8, 8, 24, 32, 128]
    assert (llama.length, llama.hidden, gpt.length, gpt.hidden) == (16, 32, 5, 8)


def test_sizes_of_many_devices_at_once() -> None:
    rows = [(1, 1, 0), (2, 3, 1), (4, 2, 0), (8, 1, 0)]
    tp, micro_batch, cut = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    together = Sizes(model=MODEL, tp=tp, micro_batch=micro_batch, sequence_parallel=cut)
    for row, (degree, b, flag) in enumerate(rows):
        alone = Sizes(model=MODEL, tp=degree, micro_batch=b, sequence_parallel=flag)
        for name in NAMES:
            assert np.broadcast_to(getattr(together, name), 4)[row] == getattr(alone, name), name


def named(calls: tuple[Call, ...]) -> list[tuple[str, tuple[int, ...], int]]:
    assert {call.role for call in calls} == {"tensor"}
    return [(call.operator, call.shape, call.count) for call in calls]


def test_synchronisation_of_the_tensor_parallel_group(llama: Sizes, llama_cut: Sizes, gpt: Sizes) -> None:
    # b·l·d = 1,536 entries; a device's shard is half.
    assert named(llama.synced(2)) == [("all_reduce", (1536, 1, 2), 2)]
    assert named(llama_cut.synced(2)) == [
        ("all_gather", (768, 1, 2), 2),
        ("reduce_scatter", (1536, 1, 2), 2),
    ]
    assert [count for *_, count in named(llama_cut.synced(1, gather=False))] == [0, 1]
    assert [count for *_, count in named(llama_cut.synced(1, scatter=False))] == [1, 0]
    # An entry per token is combined whole, also where the sequence is cut.
    assert named(llama_cut.synced(3, width=1)) == [("all_reduce", (48, 1, 2), 3)]
    assert {count for *_, count in named(gpt.synced(2))} == {0}  # one device has nobody to call


@pytest.mark.parametrize(("entries", "shard"), [(15, 8), (16, 8)])
def test_shards_are_rounded_up_and_what_is_scattered_is_whole(entries: int, shard: int) -> None:
    model = replace(MODEL, hidden_size=entries, head_size=1, attention_heads=1, kv_heads=1, sequence_length=1)
    sizes = Sizes(model=model, tp=2, sequence_parallel=1, group=Group(nodes=1, gpus_per_node=2))
    assert named(sizes.synced(1)) == [
        ("all_gather", (shard, 1, 2), 1),
        ("reduce_scatter", (entries, 1, 2), 1),
    ]


def test_what_has_no_experts_is_the_same_however_those_are_spread() -> None:
    model = replace(MODEL, experts=8, experts_per_token=2, attention="flash")
    kind = LayerKind(has_experts=True)
    spread = Sizes(
        model=model, kind=kind, tp=2, ep=4, expert_tp=2, expert_group=Group(gpus_per_node=4), imbalance=1.5
    )
    whole = Sizes(model=model, kind=kind, tp=2)
    assert spread.of_kind(DENSE) == whole.of_kind(DENSE)
    assert hash(spread.of_kind(DENSE)) == hash(whole.of_kind(DENSE))
    assert spread.of_kind(DENSE) != replace(whole, tp=4).of_kind(DENSE)
    assert spread.of_kind(kind) is spread != whole
    one, other = TransformerLayer(spread), TransformerLayer(whole)
    assert one.attention == other.attention
    assert one.calls != other.calls


def test_sizes_of_models_of_other_lengths_are_found_without_comparing_them() -> None:
    """A server is asked for many models: where their hashes are the same, every look-up compares them all."""
    several = [replace(MODEL, sequence_length=length) for length in range(64, 1064)]
    named = [replace(MODEL, name=f"model-{number}") for number in range(1000)]
    for models in (several, named):
        assert len({hash(Sizes(model=one)) for one in models}) > 990
