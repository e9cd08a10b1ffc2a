"""Padded vocabularies and parameters, by hand from eq. 1, 2, 6 and Table III."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernelcast.runtime import ModelConfig
from kernelcast.runtime.step.layers.transformer_layer import transformer_layer
from kernelcast.runtime.step.parameters import PartParameters, held_parameters, total_parameters
from kernelcast.runtime.step.sizes import Sizes, padded_vocabulary

GPT_20B = ModelConfig(
    name="gpt-20b",
    hidden_size=6144,
    sequence_length=2048,
    attention_heads=64,
    layers=44,
    vocabulary_size=50257,
    parallel_residual=True,
)
LLAMA_2_70B = ModelConfig(
    name="llama-2-70b",
    hidden_size=8192,
    sequence_length=4096,
    attention_heads=64,
    kv_heads=8,
    layers=80,
    vocabulary_size=32000,
    mlp_size=28672,
    norm="rms_norm",
    activation="swiglu",
)


def layer_parameters(model: ModelConfig, tp: int) -> int:
    s = Sizes.alone(model, tp=tp)
    return int(held_parameters(s, transformer_layer(s)).total)


def stage_parameters(model: ModelConfig, tp: Any, *, layers: Any, first: Any, last: Any) -> Any:
    parts = PartParameters.of(Sizes.alone(model, tp=tp))
    return parts.of_stage(layers=(layers,), first=first, last=last).total


@pytest.mark.parametrize(
    ("vocabulary_size", "tp", "expected"),
    [
        (50257, 1, 50304),  # 393 · 128
        (50257, 2, 50432),  # 197 · 256
        (50257, 4, 50688),  # 99 · 512
        (50257, 8, 51200),  # 50 · 1024
        (32000, 1, 32000),
        (1, 1, 128),
    ],
)
def test_vocabulary_is_padded_to_128_per_device(vocabulary_size: int, tp: int, expected: int) -> None:
    assert padded_vocabulary(vocabulary_size, tp) == expected


def test_another_padding() -> None:
    assert padded_vocabulary(50257, 2, 64) == 50304  # 393 · 128
    # None but that shards are as large as each other: the largest of them counts.
    assert padded_vocabulary(50257, 1, 1) == 50257
    assert padded_vocabulary(50257, 4, 1) == 50260
    assert Sizes.alone(GPT_20B, tp=4, vocabulary_multiple=1).vocabulary == 12565


def test_gpt_20b_on_4_by_4() -> None:
    # 4d = 24,576; 8d(d+1)/4 = 12,288 · 6,145 = 75,509,760; d(4d+1)/4 = 1,536 · 24,577 = 37,750,272.
    assert layer_parameters(GPT_20B, 4) == 113_284_608
    # v·d/tp = 12,672 · 6,144 = 77,856,768.
    assert stage_parameters(GPT_20B, 4, layers=11, first=True, last=False) == 1_323_987_456
    assert stage_parameters(GPT_20B, 4, layers=12, first=False, last=False) == 1_359_415_296
    # The last stage also has the final norm, 2d = 12,288.
    assert stage_parameters(GPT_20B, 4, layers=9, first=False, last=True) == 1_097_430_528


def test_llama_2_70b_is_its_published_size() -> None:
    # 2d = 16,384; (d + 2·1,024)·d = 83,886,080; d² = 67,108,864; 3·28,672·d = 704,643,072.
    assert layer_parameters(LLAMA_2_70B, 1) == 855_654_400
    assert stage_parameters(LLAMA_2_70B, 1, layers=80, first=True, last=True) == 68_976_648_192


def test_small_grouped_query_swiglu_layer() -> None:
    model = ModelConfig(
        name="small",
        hidden_size=8,
        sequence_length=4,
        attention_heads=4,
        kv_heads=2,
        layers=1,
        vocabulary_size=10,
        mlp_size=16,
        norm="rms_norm",
        activation="swiglu",
    )
    # norms 2·8; qkv (8 + 2·2·2)·8/2 = 64; output 8·8/2 = 32; MLP 3·16·8/2 = 192.
    assert layer_parameters(model, 2) == 16 + 64 + 32 + 192


def test_rms_norm_has_no_biases_outside_the_gelu_mlp() -> None:
    model = ModelConfig(
        name="small",
        hidden_size=8,
        sequence_length=4,
        attention_heads=4,
        layers=1,
        vocabulary_size=10,
        norm="rms_norm",
    )
    # norms 2·8; attention 3·64 + 64; MLP 32·9 + 8·33.
    assert layer_parameters(model, 1) == 16 + 256 + 288 + 264


def test_biases_of_a_gated_layer() -> None:
    plain = ModelConfig(
        name="small",
        hidden_size=8,
        sequence_length=4,
        attention_heads=4,
        kv_heads=2,
        layers=1,
        vocabulary_size=10,
        mlp_size=16,
        norm="rms_norm",
        activation="swiglu",
    )
    more = {
        biases: layer_parameters(replace(plain, biases=biases), 1) - layer_parameters(plain, 1)
        for biases in ("all", "attention", "qkv", "mlp", "none")
    }
    # QKV 8 + 2·4 = 16, output 8; gate and up 2·16, down 8.
    assert more == {"all": 64, "attention": 24, "qkv": 16, "mlp": 40, "none": 0}


def test_heads_wider_than_the_hidden_size() -> None:
    model = ModelConfig(
        name="small",
        hidden_size=8,
        head_size=6,
        sequence_length=4,
        attention_heads=4,
        kv_heads=2,
        layers=1,
        vocabulary_size=10,
        norm="rms_norm",
        activation="swiglu",
    )
    # norms 2·8; QKV 8·(24 + 2·12); output 24·8; MLP 3·32·8.
    assert layer_parameters(model, 1) == 16 + 384 + 192 + 768


def test_tied_embeddings_count_once_on_a_single_stage() -> None:
    tied, matrix = replace(GPT_20B, tied_embeddings=True), 50304 * 6144
    ends = {"layers": 1, "first": True, "last": True}
    assert stage_parameters(GPT_20B, 1, **ends) - stage_parameters(tied, 1, **ends) == matrix
    assert total_parameters(GPT_20B) - total_parameters(tied) == 50257 * 6144
    # A pipeline holds a copy at either end.
    for first in (True, False):
        one = {"layers": 1, "first": first, "last": not first}
        assert stage_parameters(GPT_20B, 1, **one) == stage_parameters(tied, 1, **one)


def test_learned_positions_are_on_the_first_stage() -> None:
    model = replace(GPT_20B, learned_positions=4096)
    for first, last, more in ((True, False, 4096 * 6144), (False, False, 0), (False, True, 0)):
        one = {"layers": 1, "first": first, "last": last}
        assert stage_parameters(model, 2, **one) - stage_parameters(GPT_20B, 2, **one) == more
    assert total_parameters(model) - total_parameters(GPT_20B) == 4096 * 6144


def test_arrays_give_what_numbers_give() -> None:
    rows = [(1, 3, 1, 1), (2, 11, 1, 0), (4, 12, 0, 0), (8, 9, 0, 1)]
    tp, layers, first, last = (np.array(column) for column in zip(*rows, strict=True))
    for model in (GPT_20B, LLAMA_2_70B, replace(GPT_20B, tied_embeddings=True, learned_positions=2048)):
        together = stage_parameters(model, tp, layers=layers, first=first, last=last)
        alone = [stage_parameters(model, m, layers=n, first=bool(a), last=bool(z)) for m, n, a, z in rows]
        assert together.tolist() == alone
