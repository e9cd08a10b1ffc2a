"""Heads that are not hidden_size / attention_heads wide, in the workload vectors that depend on them."""

from kernelcast.runtime.operators import OPERATORS, Shape

SIZES = {
    "hidden_size": 5120,
    "attention_heads": 32,
    "kv_heads": 8,
    "sequence_length": 100,
    "tensor_parallel": 4,
}


def test_usual_heads_divide_the_hidden_size() -> None:
    shape = Shape(**SIZES)
    assert (shape.head_size, shape.attention_width) == (160, 5120)


def test_heads_of_their_own_size() -> None:
    shape = Shape(**SIZES, explicit_head_size=128)
    assert (shape.head_size, shape.attention_width) == (128, 4096)
    vectors = {name: row.workload(shape) for name, row in OPERATORS.items()}
    assert vectors["qkv_linear"] == (100, 5120, (32 + 2 * 8) * 128 // 4)
    assert vectors["rope"] == vectors["flash_attention"] == (1, 100, 8, 128)
    assert vectors["attention_scores"] == (8, 100, 128, 100)
    assert vectors["attention_output_linear"] == (100, 1024, 5120)
