"""Parameters (Table III) and bytes kept for backward of every layer, each alone, by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernelcast.runtime.memory.contents import LayerContents
from kernelcast.runtime.step.layers.attention import attention, attention_gradient_bytes
from kernelcast.runtime.step.layers.attention_core import buffer_bytes
from kernelcast.runtime.step.layers.loss import embedding, loss
from kernelcast.runtime.step.layers.mlp import mlp
from kernelcast.runtime.step.layers.norm import norm
from kernelcast.runtime.step.layers.transformer_layer import transformer_layer
from kernelcast.runtime.step.op import Ops, saved_bytes
from kernelcast.runtime.step.parameters import held_parameters
from kernelcast.runtime.step.sizes import Sizes
from tests.runtime.step.layers.conftest import changed

EVERY: dict[str, Callable[[Sizes], Ops]] = {
    "norm": lambda s: (norm(s, "norm"),),
    "attention": attention,
    "mlp": mlp,
    "embedding": embedding,
    "loss": loss,
    "layer": transformer_layer,
}


def contents(s: Sizes) -> LayerContents:
    return LayerContents.of(s, transformer_layer(s))


def test_parameters_of_llama(llama: Sizes) -> None:
    # QKV (48 + 2 · 24) · 32 / 2, output 32 · 48 / 2; gate and up 2 · 40 · 32 / 2, down 32 · 40 / 2.
    assert {name: held_parameters(llama, describe(llama)).total for name, describe in EVERY.items()} == {
        "norm": 32,
        "attention": 1536 + 768,
        "mlp": 1280 + 640,
        "embedding": 256 * 32,
        "loss": 32 + 256 * 32,
        "layer": 2 * 32 + 2304 + 1920,
    }


def test_parameters_of_gpt(gpt: Sizes) -> None:
    # QKV 24 · (8 + 1), output 8 · (8 + 1); up 32 · (8 + 1), down 8 · (32 + 1).
    assert {name: held_parameters(gpt, describe(gpt)).total for name, describe in EVERY.items()} == {
        "norm": 16,
        "attention": 216 + 72,
        "mlp": 288 + 264,
        "embedding": 128 * 8 + 5 * 8,
        "loss": 16 + 128 * 8,
        "layer": 4 * 8 + 8 * 8 * 9 + 8 * 33,
    }


def test_bytes_kept_of_llama(llama: Sizes, llama_cut: Sizes) -> None:
    # Root mean squares in fp32 and 48 · 32 outputs.
    of_norm = 48 * 4 + 2 * 1536
    # QKV product 48, rotated queries 24 and keys 12, attention output 24; a log-sum-exp for 4 heads in fp32.
    of_attention = 2 * 48 * (48 + 24 + 12 + 24) + 48 * 4 * 4
    # Gate, up, gate after SiLU and the product.
    of_mlp = 2 * 48 * 4 * 20
    assert {name: saved_bytes(describe(llama)) for name, describe in EVERY.items()} == {
        "norm": of_norm,
        "attention": of_attention,
        "mlp": of_mlp,
        "embedding": 0,
        "loss": 2 * 2 * 1536 + (2 + 4) * 48 * 256,
        "layer": 2 * (2 * 1536 + of_norm) + of_attention + of_mlp,
    }
    found = contents(llama)
    assert found.block_input == 2 * 1536
    assert found.mlp == 2 * 1536 + of_norm + of_mlp
    # A cut sequence halves what norms and residuals keep.
    assert saved_bytes(EVERY["norm"](llama_cut)) == of_norm / 2
    assert saved_bytes(attention(llama_cut)) == of_attention
    assert contents(llama_cut).block_input == 1536


def test_bytes_kept_of_gpt_with_dropout(gpt: Sizes) -> None:
    drops = changed(gpt, dropout=0.1)
    # Mean and deviation in fp32.
    of_norm = 15 * 2 * 4 + 2 * 120
    # A mask of 120, the QKV product 24 and the attention output 8; weights, their mask and the dropped weights.
    of_attention = 120 + 2 * 15 * (24 + 8) + 150 * (2 + 1 + 2)
    of_mlp = 120 + 2 * 15 * 64
    assert {name: saved_bytes(describe(drops)) for name, describe in EVERY.items()} == {
        "norm": of_norm,
        "attention": of_attention,
        "mlp": of_mlp,
        "embedding": 120,
        "loss": 2 * 240 + (2 + 4) * 15 * 128,
        "layer": 2 * (240 + of_norm) + of_attention + of_mlp,
    }
    # Without dropout weights alone: 15 · 2 · 5.
    assert saved_bytes(one for one in attention(gpt) if one.module == "core_attn") == 150 * 2
    # A layer's two halves read one input.
    parallel = saved_bytes(transformer_layer(changed(drops, parallel_residual=True)))
    assert saved_bytes(transformer_layer(drops)) - parallel == 240


def test_norms_on_a_cpu(llama: Sizes, gpt: Sizes) -> None:
    # RMSNorm keeps the normalised input in fp32, and the input: a copy in fp32 unless it is that already.
    for element, more in ((2, 8 * 1536), (4, 4 * 1536)):
        for s, expected in ((llama, more), (gpt, 0)):
            gpu, cpu = (
                norm(changed(s, element_bytes=element, is_cpu=flag), "norm").saves for flag in (False, True)
            )
            assert cpu - gpu == expected


@pytest.mark.parametrize(
    ("fields", "width"),
    [
        # The QKV product of 48, with rotated queries of 24 and keys of 12 where its values are a view of it.
        ({}, 48 + 24 + 12),
        ({"kept_by": "megatron"}, 48),
        # An unfused softmax takes keys and values of all 4 heads; queries that were not rotated are a view.
        ({"attention": "fused_softmax"}, 3 * 24),
        ({"attention": "fused_softmax", "kept_by": "megatron"}, 3 * 24),
        ({"attention": "fused_softmax", "rotary": False}, 48 + 2 * 24),
    ],
)
def test_what_leads_to_the_scores(llama: Sizes, fields: dict[str, Any], width: int) -> None:
    before = (one for one in attention(changed(llama, **fields)) if one.module != "core_attn")
    # And the attention output of 24, for 48 tokens.
    assert saved_bytes(before) == 2 * 48 * (width + 24)


def test_buffers(llama: Sizes, gpt: Sizes) -> None:
    # Sine and cosine in fp32, an entry per token and element of a head, whatever tp is.
    assert buffer_bytes(llama) == 2 * 4 * 16 * 6
    assert buffer_bytes(gpt) == 0
    assert buffer_bytes(changed(gpt, attention="unfused")) == 5 * 5
    assert buffer_bytes(changed(llama, attention="unfused")) == 768 + 16 * 16


def test_gradients_on_their_way(llama: Sizes, gpt: Sizes) -> None:
    # Of the attention output and of the QKV product; without flash twice the scores.
    assert attention_gradient_bytes(llama) == 2 * 48 * (24 + 48)
    assert attention_gradient_bytes(gpt) == 2 * 15 * (2 * 2 * 5 + 8)
    # Of the width with the projection down's weights; then of the width, with SwiGLU twice.
    for s, down, activation in (
        (llama, 2 * 48 * 20 + 2 * 20 * 32, 2 * 2 * 48 * 20),
        (gpt, 2 * 15 * 32 + 2 * 32 * 8, 2 * 15 * 32),
    ):
        assert (contents(s).at_projection, contents(s).at_activation) == (down, activation)


def test_what_late_weight_gradients_need(llama: Sizes, gpt: Sizes) -> None:
    # Inputs and output gradients: QKV 32 and 48, output 24 and 32; gate and up 32 and 40, down 20 and 32.
    assert contents(llama).late == 2 * 48 * (32 + 48 + 24 + 32) + 2 * 48 * (32 + 40 + 20 + 32)
    assert sum(one.late for one in mlp(gpt)) == 2 * 15 * (8 + 32 + 32 + 8)


@pytest.mark.parametrize("fields", [{}, {"dropout": 0.1}, {"element_bytes": 4, "is_cpu": True}])
def test_many_devices_at_once_as_each_alone(llama: Sizes, gpt: Sizes, fields: dict[str, Any]) -> None:
    names = ("tp", "micro_batch", "sequence_parallel")
    rows = [(1, 1, 0), (2, 3, 1), (1, 2, 0), (2, 1, 0)]
    arrays = [np.array(column, dtype=np.float64) for column in zip(*rows, strict=True)]
    for model in (llama.model, gpt.model):
        one = changed(Sizes.alone(model), **fields)
        together = changed(one, **dict(zip(names, arrays, strict=True)))
        for describe in EVERY.values():
            sizes = np.broadcast_to(saved_bytes(describe(together)), 4)
            parameters = np.broadcast_to(held_parameters(together, describe(together)).total, 4)
            for row, values in enumerate(rows):
                alone = changed(one, **dict(zip(names, values, strict=True)))
                assert sizes[row] == saved_bytes(describe(alone))
                assert parameters[row] == held_parameters(alone, describe(alone)).total
