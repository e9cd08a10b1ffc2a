"""What every layer calls, each alone, by hand: a grouped-query SwiGLU model on two devices, a GPT model on one."""

from collections.abc import Iterable

import pytest

from kernelcast.runtime.request.fields import Recompute
from kernelcast.runtime.step.calls import Call, backward, forward
from kernelcast.runtime.step.layers.attention import Attention
from kernelcast.runtime.step.layers.embedding import Embedding
from kernelcast.runtime.step.layers.loss import Loss
from kernelcast.runtime.step.layers.mlp import Mlp
from kernelcast.runtime.step.layers.norm import Norm
from kernelcast.runtime.step.layers.sizes import Layer, Sizes
from kernelcast.runtime.step.layers.transformer_layer import TransformerLayer

Listed = list[tuple[str, tuple[int, ...], int]]


def listed(calls: Iterable[Call]) -> Listed:
    """Operator with its role, vector and number of the calls that happen."""
    return [
        (f"{call.operator}/{call.role}" if call.role else call.operator, call.shape, call.count)
        for call in calls
        if call.count
    ]


def once(**shapes: tuple[int, ...]) -> Listed:
    return [(name.replace("__", "/"), shape, 1) for name, shape in shapes.items()]


LLAMA_ATTENTION = once(
    gemm__qkv=(48, 32, 48),
    qkv_split=(48, 48),
    rope=(3, 16, 4, 2, 6),
    flash_attention=(3, 16, 4, 2, 6),
    gemm__attention_output=(48, 24, 32),
)
LLAMA_MLP = once(gemm__mlp_gate_up=(48, 32, 40), swiglu=(3, 16, 20), gemm__mlp_down=(48, 20, 32))
GPT_ATTENTION = [
    ("gemm/qkv", (15, 8, 24), 1),
    ("bias_add", (15, 24), 1),
    ("qkv_split", (15, 24), 1),
    ("batched_gemm/attention_scores", (6, 5, 4, 5), 1),
    ("fused_causal_softmax", (6, 5, 5), 1),
    ("batched_gemm/attention_values", (6, 5, 5, 4), 1),
    ("gemm/attention_output", (15, 8, 8), 1),
    ("bias_add", (15, 8), 1),
]
GPT_MLP = [
    ("gemm/mlp_up", (15, 8, 32), 1),
    ("bias_add", (15, 32), 1),
    ("gelu", (3, 5, 32), 1),
    ("gemm/mlp_down", (15, 32, 8), 1),
    ("bias_add", (15, 8), 1),
]


def test_llama(llama: Sizes) -> None:
    assert listed(Norm(llama).calls) == once(rms_norm=(3, 16, 32))
    assert listed(Attention(llama).calls) == LLAMA_ATTENTION
    assert listed(Mlp(llama).calls) == LLAMA_MLP
    assert listed(Embedding(llama).calls) == once(embedding=(48, 256, 32), embedding_mask=(48, 32))
    assert listed(Loss(llama).calls) == once(
        rms_norm=(3, 16, 32), gemm__logits=(48, 32, 256), cross_entropy=(3, 16, 256)
    )
    assert listed(TransformerLayer(llama).calls) == [
        ("rms_norm", (3, 16, 32), 2),
        *LLAMA_ATTENTION,
        ("residual_add", (3, 16, 32), 2),
        *LLAMA_MLP,
    ]


def test_gpt(gpt: Sizes) -> None:
    assert listed(Norm(gpt).calls) == once(layer_norm=(3, 5, 8))
    assert listed(Attention(gpt).calls) == GPT_ATTENTION
    assert listed(Mlp(gpt).calls) == GPT_MLP
    assert listed(Embedding(gpt).calls) == once(embedding=(15, 128, 8))
    assert listed(Loss(gpt).calls) == once(
        layer_norm=(3, 5, 8), gemm__logits=(15, 8, 128), cross_entropy=(3, 5, 128)
    )
    assert listed(TransformerLayer(gpt).calls) == [
        ("layer_norm", (3, 5, 8), 2),
        *GPT_ATTENTION,
        ("residual_add", (3, 5, 8), 2),
        *GPT_MLP,
    ]


def test_sequence_parallelism_cuts_norms_and_residuals(llama_cut: Sizes) -> None:
    found = {name: shape for name, shape, _ in listed(TransformerLayer(llama_cut).calls)}
    assert (found["rms_norm"], found["residual_add"]) == ((3, 8, 32), (3, 8, 32))
    assert listed(Attention(llama_cut).calls) == LLAMA_ATTENTION
    assert listed(Mlp(llama_cut).calls) == LLAMA_MLP
    assert listed(Loss(llama_cut).calls)[0] == ("rms_norm", (3, 8, 32), 1)


def collectives(layer: Layer) -> tuple[Listed, Listed]:
    return listed(layer.forward_collectives), listed(layer.backward_collectives)


def test_collectives(llama: Sizes) -> None:
    whole, loss = ("all_reduce/tensor", (1536, 1, 2)), ("all_reduce/tensor", (48, 1, 2), 3)
    assert collectives(TransformerLayer(llama)) == ([(*whole, 2)], [(*whole, 2)])
    assert collectives(Embedding(llama)) == ([(*whole, 1)], [])
    assert collectives(Loss(llama)) == ([loss], [(*whole, 1)])
    for part in (Norm(llama), Attention(llama), Mlp(llama)):
        assert collectives(part) == ([], [])


def test_collectives_of_a_cut_sequence(llama_cut: Sizes) -> None:
    gather, scatter = ("all_gather/tensor", (768, 1, 2)), ("reduce_scatter/tensor", (1536, 1, 2))
    loss = ("all_reduce/tensor", (48, 1, 2), 3)
    assert collectives(TransformerLayer(llama_cut)) == ([(*gather, 2), (*scatter, 2)],) * 2
    assert collectives(Embedding(llama_cut)) == ([(*scatter, 1)], [(*gather, 1)])
    assert collectives(Loss(llama_cut)) == ([(*gather, 1), loss], [(*scatter, 1)])


def test_a_single_device_calls_no_collective(gpt: Sizes) -> None:
    for layer in (TransformerLayer(gpt), Embedding(gpt), Loss(gpt)):
        assert collectives(layer) == ([], [])


def test_directions_of_the_two_passes(llama: Sizes) -> None:
    calls = TransformerLayer(llama).calls
    names = ["rms_norm", "rope", "flash_attention", "residual_add", "swiglu"]
    linears = ["qkv", "attention_output", "mlp_gate_up", "mlp_down"]
    ahead = {(call.role or call.operator, str(call.direction)): call.count for call in forward(calls)}
    back = {(call.role or call.operator, str(call.direction)): call.count for call in backward(calls)}
    twice = {"rms_norm": 2, "residual_add": 2}
    assert ahead == {(name, "forward"): twice.get(name, 1) for name in [*names, *linears]}
    # Forward, queries, keys and values are views of one product.
    assert back == (
        {(name, "backward"): twice.get(name, 1) for name in [*names, "qkv_split"]}
        | {(name, f"{of}_gradient"): 1 for name in linears for of in ("input", "weight")}
    )


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_what_recomputation_runs_again(llama: Sizes, recompute: Recompute) -> None:
    layer = TransformerLayer(llama)
    again = {
        "none": (),
        "selective": forward(layer.attention.core_calls),
        "full": (*forward(layer.calls), *forward(layer.forward_collectives)),
    }[recompute]
    assert layer.recomputed(recompute) == again
    assert listed(layer.attention.core_calls) == once(flash_attention=(3, 16, 4, 2, 6))
