"""Latent attention by hand: DeepSeek-V2's published counts, and the products of a small model on two devices."""

from kernelcast.runtime import Cluster, ModelConfig, Parallelism
from kernelcast.runtime.step.layers.latent_attention import LatentAttention
from kernelcast.runtime.step.layers.sizes import Sizes
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
