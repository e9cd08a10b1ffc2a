"""Parameters (Table III) and bytes kept for backward of every layer, each alone, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from kernelcast.runtime.step.layers.attention import Attention
from kernelcast.runtime.step.layers.embedding import Embedding
from kernelcast.runtime.step.layers.loss import Loss
from kernelcast.runtime.step.layers.mlp import Mlp
from kernelcast.runtime.step.layers.norm import Norm
from kernelcast.runtime.step.layers.sizes import Kept, Layer, Sizes
from kernelcast.runtime.step.layers.transformer_layer import TransformerLayer

FP16, DROPOUT = Kept(element=2), Kept(element=2, mask=1)
EVERY: tuple[type[Layer], ...] = (Norm, Attention, Mlp, Embedding, Loss, TransformerLayer)


def test_parameters_of_llama(llama: Sizes) -> None:
    # QKV (48 + 2 · 24) · 32 / 2, output 32 · 48 / 2; gate and up 2 · 40 · 32 / 2, down 32 · 40 / 2.
    found = {kind.__name__: kind(llama).parameters for kind in EVERY}
    assert found == {
        "Norm": 32,
        "Attention": 1536 + 768,
        "Mlp": 1280 + 640,
        "Embedding": 256 * 32,
        "Loss": 32 + 256 * 32,
        "TransformerLayer": 2 * 32 + 2304 + 1920,
    }


def test_parameters_of_gpt(gpt: Sizes) -> None:
    # QKV 24 · (8 + 1), output 8 · (8 + 1); up 32 · (8 + 1), down 8 · (32 + 1).
    found = {kind.__name__: kind(gpt).parameters for kind in EVERY}
    assert found == {
        "Norm": 16,
        "Attention": 216 + 72,
        "Mlp": 288 + 264,
        "Embedding": 128 * 8 + 5 * 8,
        "Loss": 16 + 128 * 8,
        "TransformerLayer": 4 * 8 + 8 * 8 * 9 + 8 * 33,
    }


def test_bytes_kept_of_llama(llama: Sizes, llama_cut: Sizes) -> None:
    layer = TransformerLayer(llama)
    # Root mean squares in fp32 and 48 · 32 outputs.
    assert layer.norm.kept_bytes(FP16) == 48 * 4 + 2 * 1536
    # QKV product 48, rotated queries 24 and keys 12, attention output 24.
    assert layer.attention.kept_bytes(FP16) == 2 * 48 * (48 + 24 + 12 + 24)
    assert layer.attention.core_bytes(FP16) == 48 * 4 * 4
    # Gate, up, gate after SiLU and the product.
    assert layer.mlp.kept_bytes(FP16) == 2 * 48 * 4 * 20
    assert layer.input_bytes(FP16) == 2 * 1536
    assert layer.mlp_bytes(FP16) == 3264 + 3072 + 7680
    assert layer.kept_bytes(FP16) == 3264 + 10368 + 768 + 14016
    assert Embedding(llama).kept_bytes(FP16) == 0
    assert Loss(llama).kept_bytes(FP16) == 2 * 2 * 1536
    # A cut sequence halves what norms and residuals keep.
    cut = TransformerLayer(llama_cut)
    assert cut.norm.kept_bytes(FP16) == 24 * 4 + 2 * 768
    assert cut.attention.kept_bytes(FP16) == layer.attention.kept_bytes(FP16)
    assert cut.input_bytes(FP16) == 1536


def test_bytes_kept_of_gpt_with_dropout(gpt: Sizes) -> None:
    layer = TransformerLayer(gpt)
    # Mean and deviation in fp32.
    assert layer.norm.kept_bytes(DROPOUT) == 15 * 2 * 4 + 2 * 120
    # A mask of 120, the QKV product 24 and the attention output 8.
    assert layer.attention.kept_bytes(DROPOUT) == 120 + 2 * 15 * (24 + 8)
    # Weights, their mask and the dropped weights: 15 · 2 · 5 each.
    assert layer.attention.core_bytes(DROPOUT) == 150 * (2 + 1 + 2)
    assert layer.attention.core_bytes(FP16) == 150 * 2
    assert layer.mlp.kept_bytes(DROPOUT) == 120 + 2 * 15 * 64
    assert layer.kept_bytes(DROPOUT) == 360 + 1080 + 750 + (360 + 240 + 2040)
    assert Embedding(gpt).kept_bytes(DROPOUT) == 120
    parallel = replace(gpt, model=replace(gpt.model, parallel_residual=True))
    assert TransformerLayer(parallel).kept_bytes(DROPOUT) == layer.kept_bytes(DROPOUT) - 240


def test_norms_on_a_cpu(llama: Sizes, gpt: Sizes) -> None:
    # RMSNorm keeps the normalised input in fp32, and the input: a copy in fp32 unless it is that already.
    for element, more in ((2, 8 * 1536), (4, 4 * 1536)):
        gpu, cpu = (Kept(element=element, is_cpu=flag) for flag in (False, True))
        assert Norm(llama).kept_bytes(cpu) - Norm(llama).kept_bytes(gpu) == more
        assert Norm(gpt).kept_bytes(cpu) == Norm(gpt).kept_bytes(gpu)


@pytest.mark.parametrize(
    ("rotary", "width"),
    [
        # Rotated queries, and copies of keys and values for every query head.
        (True, 3 * 24),
        # Queries that were not rotated are a view of the QKV product of 48.
        (False, 48 + 2 * 24),
    ],
)
def test_grouped_queries_without_flash_keep_copies(llama: Sizes, rotary: bool, width: int) -> None:
    unfused = replace(llama, model=replace(llama.model, attention="fused_softmax", rotary=rotary))
    assert Attention(unfused).kept_bytes(FP16) == 2 * 48 * (width + 24)


def test_buffers(llama: Sizes, gpt: Sizes) -> None:
    # Sine and cosine in fp32, an entry per token and element of a head, whatever tp is.
    assert Attention(llama).buffer_bytes == 2 * 4 * 16 * 6
    assert Attention(gpt).buffer_bytes == 0
    unfused = replace(gpt, model=replace(gpt.model, attention="unfused"))
    assert Attention(unfused).buffer_bytes == 5 * 5
    both = replace(llama, model=replace(llama.model, attention="unfused"))
    assert Attention(both).buffer_bytes == 768 + 16 * 16


def test_gradients_on_their_way(llama: Sizes, gpt: Sizes) -> None:
    # Of the attention output and of the QKV product; without flash twice the scores.
    assert Attention(llama).gradient_bytes(FP16) == 2 * 48 * (24 + 48)
    assert Attention(gpt).gradient_bytes(FP16) == 2 * 15 * (2 * 2 * 5 + 8)
    # Of the width with the projection down's weights; then of the width, with SwiGLU twice.
    assert Mlp(llama).gradient_bytes(FP16) == (2 * 48 * 20 + 2 * 20 * 32, 2 * 2 * 48 * 20)
    assert Mlp(gpt).gradient_bytes(FP16) == (2 * 15 * 32 + 2 * 32 * 8, 2 * 15 * 32)


def test_what_late_weight_gradients_need(llama: Sizes, gpt: Sizes) -> None:
    # Inputs and output gradients: QKV 32 and 48, output 24 and 32; gate and up 32 and 40, down 20 and 32.
    assert Attention(llama).weight_gradient_bytes(FP16) == 2 * 48 * (32 + 48 + 24 + 32)
    assert Mlp(llama).weight_gradient_bytes(FP16) == 2 * 48 * (32 + 40 + 20 + 32)
    assert Mlp(gpt).weight_gradient_bytes(FP16) == 2 * 15 * (8 + 32 + 32 + 8)
    assert TransformerLayer(llama).weight_gradient_bytes(FP16) == 13056 + 11904


@pytest.mark.parametrize("kept", [FP16, DROPOUT, Kept(element=4, is_cpu=True)])
def test_many_devices_at_once_as_each_alone(llama: Sizes, gpt: Sizes, kept: Kept) -> None:
    rows = [(1, 1, 0), (2, 3, 1), (1, 2, 0), (2, 1, 0)]
    tp, micro_batch, cut = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    for model in (llama.model, gpt.model):
        together = Sizes(model=model, tp=tp, micro_batch=micro_batch, sequence_parallel=cut)
        for kind in EVERY:
            sizes = np.broadcast_to(kind(together).kept_bytes(kept), 4)
            parameters = np.broadcast_to(kind(together).parameters, 4)
            for row, (degree, b, flag) in enumerate(rows):
                alone = kind(Sizes(model=model, tp=degree, micro_batch=b, sequence_parallel=flag))
                assert sizes[row] == alone.kept_bytes(kept)
                assert parameters[row] == alone.parameters
