"""Latent attention by hand: DeepSeek-V2's published counts, and the products of a small model on two devices."""

from dataclasses import replace

from kernelcast.runtime import Cluster, ModelConfig, Parallelism
from kernelcast.runtime.step.layers.latent_attention import LatentAttention
from kernelcast.runtime.step.layers.linear import Linears
from kernelcast.runtime.step.layers.sizes import Kept, Sizes
from kernelcast.runtime.step.layers.transformer_layer import TransformerLayer

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


def test_products_of_one_of_two_devices() -> None:
    layout = Parallelism(pp=1, tp=2, dp=1, micro_batch=3, micro_batches=1, sequence_parallel=True)
    attention = LatentAttention(Sizes.of(SMALL, layout, Cluster(gpus_per_node=2)))
    assert [(one.operator, one.role, one.shape) for one in attention.calls if one.count] == [
        ("gemm", "query_down", (24, 32, 10)),
        ("rms_norm", "", (3, 8, 10)),
        ("gemm", "query_up", (48, 10, 24)),
        ("gemm", "kv_down", (24, 32, 10)),
        ("rms_norm", "", (3, 8, 6)),
        ("gemm", "kv_up", (48, 6, 32)),
        # 2 heads: queries of 12, keys half of 8 + 12 (4 are rotated, and shared), values of 8; 7 times the rotated 4.
        ("copy", "", (48, 2 * (12 + 10 + 8) + 7 * 2 * 4)),
        # Heads of 12 for queries and keys, 8 for values: 10 in the mean.
        ("flash_attention", "", (3, 16, 2, 2, 10)),
        ("gemm", "attention_output", (48, 16, 32)),
    ]


def test_parameters() -> None:
    whole = LatentAttention(Sizes(model=SMALL)).parameters
    queries = 32 * 10 + 10 + 10 * 4 * 12
    keys = 32 * (6 + 4) + 6 + 6 * 4 * (8 + 8)
    assert whole == queries + keys + 4 * 8 * 32


def test_a_layer_takes_it_where_the_model_has_low_ranks() -> None:
    assert isinstance(TransformerLayer(Sizes(model=SMALL)).attention, LatentAttention)


FP16 = Kept(element=2)


def shared(**changes: object) -> LatentAttention:
    """On one of two devices: 48 tokens, 24 of them its own; 2 heads, queries of 24 in all and values of 16."""
    sizes = Sizes(model=replace(SMALL, **changes), tp=2, micro_batch=3, sequence_parallel=1)  # type: ignore[arg-type]
    return LatentAttention(sizes)


# Before and after its norm: ranks of 10 and of 6, and the rotated 4 of all keys. Queries and keys of 24, values of 16.
LOW, HEADS = 2 * 10 + (6 + 4) + 6, 24 + 24 + 16


def test_bytes_kept() -> None:
    assert shared().kept_bytes(FP16) == 2 * 48 * (LOW + HEADS + 16)
    assert shared(query_rank=0).kept_bytes(FP16) == 2 * 48 * (LOW - 20 + HEADS + 16)
    # The log-sum-exp of every head and token in fp32.
    assert shared().core_bytes(FP16) == 4 * 48 * 2


def test_bytes_kept_in_8_bit() -> None:
    attention = shared()
    cast = LatentAttention(replace(attention.sizes, linears=Linears(recipe="tensorwise")))
    # Of both ranks after their norms a byte less; of the attention output, which its kernel keeps too, a byte more.
    assert cast.kept_bytes(FP16) == attention.kept_bytes(FP16) + 48 * (16 - 10 - 6)
    wide = replace(attention.sizes, model=replace(SMALL, query_rank=20))
    cast = LatentAttention(replace(wide, linears=Linears(recipe="tensorwise")))
    assert cast.kept_bytes(FP16) == LatentAttention(wide).kept_bytes(FP16) + 48 * (16 - 20 - 6)


def test_gradients_on_their_way() -> None:
    # Of the attention output, and of queries, keys and values.
    assert shared().gradient_bytes(FP16) == 2 * 48 * (16 + HEADS)


def test_what_late_weight_gradients_need() -> None:
    # The layer's input and the gradient of its output, of 24 tokens; ranks and heads of all 48.
    assert shared().weight_gradient_bytes(FP16) == 2 * (2 * 24 * 32 + 48 * (LOW + HEADS + 16))


def test_weights_of_one_of_two_devices() -> None:
    # Down to both ranks whole, up from them and the output cut.
    keys_and_output = [(32, 10), (6, 2 * (8 + 8)), (16, 32)]
    assert [(one.k, one.n) for one in shared().weights] == [(32, 10), (10, 24), *keys_and_output]
    assert [(one.k, one.n) for one in shared(query_rank=0).weights] == [(32, 24), *keys_and_output]


def test_parameters_of_one_of_two_devices() -> None:
    keys_and_output = 32 * 10 + 6 + 6 * 32 + 16 * 32
    assert shared().parameters == 32 * 10 + 10 + 10 * 24 + keys_and_output
    assert shared(query_rank=0).parameters == 32 * 24 + keys_and_output


def test_products_without_a_rank_of_queries() -> None:
    assert [(one.role, one.shape) for one in shared(query_rank=0).calls if one.operator == "gemm"] == [
        ("qkv", (48, 32, 24)),
        ("kv_down", (24, 32, 10)),
        ("kv_up", (48, 6, 32)),
        ("attention_output", (48, 16, 32)),
    ]
    assert shared(query_rank=0).up_roles == ("qkv", "kv_up")
    assert shared().up_roles == ("query_up", "kv_up")


def test_heads_are_copied_without_rotation() -> None:
    # As with it, without the seven passes over the rotated part.
    [copy] = [one for one in shared(rotary=False).calls if one.operator == "copy"]
    assert copy.shape == (48, 2 * (12 + 10 + 8))
