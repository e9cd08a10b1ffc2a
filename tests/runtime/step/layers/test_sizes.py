"""What one device holds of a model's sizes."""

from dataclasses import replace

import numpy as np

from kernelcast.runtime import ModelConfig
from kernelcast.runtime.step.chunks import DENSE
from kernelcast.runtime.step.layers.attention import attention
from kernelcast.runtime.step.layers.tensor_parallel import all_reduce, gather, scatter
from kernelcast.runtime.step.layers.transformer_layer import transformer_layer
from kernelcast.runtime.step.op import computing
from kernelcast.runtime.step.sizes import Sizes
from tests.runtime.step.layers.conftest import EXPERTS, changed, listed, sized

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
    usual = Sizes.alone(MODEL, tp=4)
    assert (usual.heads, usual.kv_heads) == (8, 2)
    assert (usual.attention_width, usual.kv_width, usual.qkv_width) == (1280, 320, 1920)
    wide = Sizes.alone(replace(MODEL, head_size=128), tp=4)
    assert (wide.attention_width, wide.kv_width, wide.qkv_width) == (1024, 256, 1536)


def test_by_hand(llama: Sizes, llama_cut: Sizes, gpt: Sizes) -> None:
    assert [getattr(llama, name) for name in NAMES] == [16, 48, 48, 4, 2, 24, 12, 48, 20, 256]
    assert [getattr(llama_cut, name) for name in NAMES] == [8, 48, 24, 4, 2, 24, 12, 48, 20, 256]
    assert [getattr(gpt, name) for name in NAMES] == [5, 15, 15, 2, 2, 8, 8, 24, 32, 128]
    assert (llama.length, llama.hidden, gpt.length, gpt.hidden) == (16, 32, 5, 8)


def test_sizes_of_many_devices_at_once() -> None:
    rows = [(1, 1, 0), (2, 3, 1), (4, 2, 0), (8, 1, 0)]
    tp, micro_batch, cut = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    together = Sizes.alone(MODEL, tp=tp, micro_batch=micro_batch, sequence_parallel=cut)
    for row, (degree, b, flag) in enumerate(rows):
        alone = Sizes.alone(MODEL, tp=degree, micro_batch=b, sequence_parallel=flag)
        for name in NAMES:
            assert np.broadcast_to(getattr(together, name), 4)[row] == getattr(alone, name), name


def test_a_sequence_is_cut_by_several_devices_alone() -> None:
    assert [Sizes.alone(MODEL, tp=tp, sequence_parallel=True).sequence_parallel for tp in (1, 2)] == [0, 1]


def test_synchronisation_of_the_tensor_parallel_group(llama: Sizes, llama_cut: Sizes, gpt: Sizes) -> None:
    def calls(s: Sizes, **width: int) -> list[tuple[str, tuple[int, ...], int]]:
        ops = (
            all_reduce(s, "sum", "both", 2, **width),
            gather(s, "gather", "both", s.hidden, 2),
            scatter(s, "scatter", "both", 2),
        )
        assert {one.call.role for one in ops if one.call is not None} == {"tensor"}
        return listed(call for one in ops for call in one.forward())

    # b·l·d = 1,536 entries; a device's shard is half.
    assert calls(llama) == [("all_reduce/tensor", (1536, 1, 2), 2)]
    cut = [("all_gather/tensor", (768, 1, 2), 2), ("reduce_scatter/tensor", (1536, 1, 2), 2)]
    assert calls(llama_cut) == cut
    # An entry per token is combined whole, also where the sequence is cut.
    assert calls(llama_cut, width=1) == [("all_reduce/tensor", (48, 1, 2), 2), *cut]
    assert calls(gpt) == []  # one device needs no collective
    # Shards are rounded up, what is scattered is whole.
    for entries in (15, 16):
        model = replace(
            MODEL, hidden_size=entries, head_size=1, attention_heads=1, kv_heads=1, sequence_length=1
        )
        assert calls(sized(model, tp=2, sequence_parallel=True)) == [
            ("all_gather/tensor", (8, 1, 2), 2),
            ("reduce_scatter/tensor", (entries, 1, 2), 2),
        ]


def test_what_has_no_experts_is_the_same_however_those_are_spread() -> None:
    model = replace(MODEL, experts=8, experts_per_token=2, attention="flash")
    whole = sized(model, kind=EXPERTS, tp=2)
    spread = changed(whole, ep=4, expert_tp=2, expert_imbalance=1.5)
    assert spread.of_kind(DENSE) == whole.of_kind(DENSE)
    assert hash(spread.of_kind(DENSE)) == hash(whole.of_kind(DENSE))
    assert spread.of_kind(DENSE) != changed(whole, tp=4).of_kind(DENSE)
    assert spread.of_kind(EXPERTS) is spread != whole
    assert attention(spread) == attention(whole)
    assert computing(transformer_layer(spread)) != computing(transformer_layer(whole))


def test_sizes_of_models_of_other_lengths_are_found_without_comparing_them() -> None:
    """A server predicts many models: where their hashes are the same, every look-up compares them all."""
    several = [replace(MODEL, sequence_length=length) for length in range(64, 1064)]
    named = [replace(MODEL, name=f"model-{number}") for number in range(1000)]
    for models in (several, named):
        assert len({hash(Sizes.alone(one)) for one in models}) > 990
