"""Latent attention by hand: DeepSeek-V2's published counts, and the products of a small model on two devices."""

from typing import Any

from kernelcast.runtime import ModelConfig
from kernelcast.runtime.step.layers.attention import attention, attention_gradient_bytes, column_products
from kernelcast.runtime.step.op import computing, saved_bytes
from kernelcast.runtime.step.parameters import held_parameters
from kernelcast.runtime.step.sizes import Sizes
from tests.runtime.step.layers.conftest import changed, listed, sized

SMALL = ModelConfig(
    name="latent",
    hidden_size=32,
    sequence_length=16,
    attention_heads=4,
    head_size=12,
    rotary_size=4,
    value_head_size=8,
    query_rank=10,
    kv_rank=6,
    layers=2,
    vocabulary_size=256,
    norm="rms_norm",
    activation="swiglu",
)


def shared(**changes: Any) -> Sizes:
    """On one of two devices: 48 tokens, 24 of them its own; 2 heads, queries of 24 in all and values of 16."""
    return changed(sized(SMALL, tp=2, micro_batch=3, sequence_parallel=True), **changes)


def test_products_of_one_of_two_devices() -> None:
    assert listed(computing(attention(shared()))) == [
        ("gemm/query_down", (24, 32, 10), 1),
        ("rms_norm", (3, 8, 10), 1),
        ("gemm/query_up", (48, 10, 24), 1),
        ("gemm/kv_down", (24, 32, 10), 1),
        ("rms_norm", (3, 8, 6), 1),
        ("gemm/kv_up", (48, 6, 32), 1),
        # 2 heads: queries of 12, keys half of 8 + 12 (4 are rotated, and shared), values of 8; 7 times the rotated 4.
        ("copy", (48, 2 * (12 + 10 + 8) + 7 * 2 * 4), 1),
        # Heads of 12 for queries and keys, 8 for values: 10 in the mean.
        ("flash_attention", (3, 16, 2, 2, 10), 1),
        ("gemm/attention_output", (48, 16, 32), 1),
    ]


# Before and after its norm, of its own tokens: ranks of 10 and of 6, and the rotated 4 of all keys. Of all tokens
# queries and keys of 24, values of 16.
LOW, HEADS = 2 * 10 + (6 + 4) + 6, 24 + 24 + 16
LOG_SUM_EXP = 4 * 48 * 2
"""Of every head and token in fp32."""


def test_bytes_kept() -> None:
    assert saved_bytes(attention(shared())) == 2 * 24 * LOW + 2 * 48 * (HEADS + 16) + LOG_SUM_EXP
    low = 2 * 24 * (LOW - 20)
    assert saved_bytes(attention(shared(query_rank=0))) == low + 2 * 48 * (HEADS + 16) + LOG_SUM_EXP
    of_core = (one for one in attention(shared()) if one.module == "core_attn")
    assert saved_bytes(of_core) == LOG_SUM_EXP


def test_bytes_kept_in_8_bit() -> None:
    # Of both ranks after their norms a byte less; of the attention output, which its kernel keeps too, a byte more.
    for rank in (10, 20):
        usual, cast = (
            saved_bytes(attention(shared(query_rank=rank, fp8_recipe=recipe, kept_by="megatron")))
            for recipe in ("none", "tensorwise")
        )
        assert cast == usual + 48 * 16 - 24 * (rank + 6)


def test_gradients_on_their_way() -> None:
    # Of the attention output, and of queries, keys and values.
    assert attention_gradient_bytes(shared()) == 2 * 48 * (16 + HEADS)


def test_what_late_weight_gradients_need() -> None:
    # The layer's input and the gradient of its output, of 24 tokens; inputs and output gradients of all other products,
    # of 48: ranks, queries of 24, keys without the rotated part and values of 32, and the attention output.
    products = 10 + (10 + 24) + (6 + 4) + (6 + 32) + 16
    assert sum(one.late for one in attention(shared())) == 2 * (2 * 24 * 32 + 48 * products)


def test_weights_and_parameters_of_one_of_two_devices() -> None:
    # Down to both ranks whole, up from them and the output cut.
    keys_and_output = [(32, 10), (6, 2 * (8 + 8)), (16, 32)]
    for rank, queries, of_norm in ((10, [(32, 10), (10, 24)], 10), (0, [(32, 24)], 0)):
        ops = attention(shared(query_rank=rank))
        found = [(one.weight.k, one.weight.n) for one in ops if one.weight is not None]
        assert found == [*queries, *keys_and_output]
        own = sum(k * n for k, n in found) + of_norm + 6
        assert held_parameters(shared(), ops).total == own


def test_parameters() -> None:
    whole = held_parameters(shared(), attention(Sizes.alone(SMALL))).total
    queries = 32 * 10 + 10 + 10 * 4 * 12
    keys = 32 * (6 + 4) + 6 + 6 * 4 * (8 + 8)
    assert whole == queries + keys + 4 * 8 * 32


def test_products_without_a_rank_of_queries() -> None:
    products = [one for one in listed(computing(attention(shared(query_rank=0)))) if one[0][:4] == "gemm"]
    assert products == [
        ("gemm/qkv", (48, 32, 24), 1),
        ("gemm/kv_down", (24, 32, 10), 1),
        ("gemm/kv_up", (48, 6, 32), 1),
        ("gemm/attention_output", (48, 16, 32), 1),
    ]
    assert column_products(shared(query_rank=0)) == ("qkv", "kv_up")
    assert column_products(shared()) == ("query_up", "kv_up")


def test_heads_are_copied_without_rotation() -> None:
    # As with it, without the seven passes over the rotated part.
    assert ("copy", (48, 2 * (12 + 10 + 8)), 1) in listed(computing(attention(shared(rotary=False))))
