"""What every layer calls, each alone, by hand: a grouped-query SwiGLU model on two devices, a GPT model on one."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

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
from kernelcast.runtime.step.recomputation import Recomputation

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
    assert layer.recomputed(Recomputation(kind=recompute)) == again
    assert listed(layer.attention.core_calls) == once(flash_attention=(3, 16, 4, 2, 6))


def not_again(sizes: Sizes, **how: Any) -> dict[str, int]:
    """Calls of a forward pass that recomputation leaves out, by role or operator."""
    layer = TransformerLayer(sizes)
    found = Counter({one.role or one.operator: 0 for one in layer.calls})
    for one in (*forward(layer.calls), *forward(layer.forward_collectives)):
        found[one.operator if one.role in ("", "tensor") else one.role] += one.count
    for one in layer.recomputed(Recomputation(**how)):
        found[one.operator if one.role in ("", "tensor") else one.role] -= one.count
    assert min(found.values()) >= 0
    return {name: count for name, count in found.items() if count}


def test_a_checkpoint_that_stops_early_leaves_out_what_follows_the_last_kept_tensor(
    llama: Sizes, llama_cut: Sizes, gpt: Sizes
) -> None:
    assert not_again(llama, kind="full") == {}
    last = {"mlp_down": 1, "residual_add": 1}
    assert not_again(llama, kind="full", stops_early=True) == {**last, "all_reduce": 1}
    assert not_again(llama_cut, kind="full", stops_early=True) == {**last, "reduce_scatter": 1}
    assert not_again(gpt, kind="full", stops_early=True) == {**last, "bias_add": 1}
    parallel = replace(llama, model=replace(llama.model, parallel_residual=True, forward_syncs=1))
    assert not_again(parallel, kind="full", stops_early=True) == {
        "mlp_down": 1, "residual_add": 2, "all_reduce": 1,
    }  # fmt: skip
    # The mask of a dropout is kept behind the last product.
    assert not_again(replace(gpt, drops=1), kind="full", stops_early=True) == {"residual_add": 1}


def test_selective_recomputation_of_modules(llama: Sizes) -> None:
    layer = TransformerLayer(llama)

    def again(*modules: Any, **how: Any) -> dict[str, int]:
        calls = layer.recomputed(Recomputation(kind="selective", modules=modules, **how))
        return {one.role or one.operator: one.count for one in calls}

    assert again("core_attn") == {"flash_attention": 1}
    assert again("layernorm") == {"rms_norm": 2}
    mlp = {"mlp_gate_up": 1, "swiglu": 1}
    assert again("mlp") == {**mlp, "mlp_down": 1, "tensor": 1}
    assert again("mlp", stops_early=True) == mlp
    assert again("core_attn", "mlp", "layernorm") == again("core_attn") | again("layernorm") | again("mlp")


def test_dropout_runs_after_embedding_attention_and_mlp_and_on_weights(llama_cut: Sizes, gpt: Sizes) -> None:
    def dropped(layer: Layer) -> list[tuple[int, ...]]:
        return [one.shape for one in layer.calls if one.operator == "dropout" and one.count]

    assert not dropped(TransformerLayer(gpt))
    # 3 samples of 16 tokens, cut in 2 along the sequence; d = 32.
    cut = replace(llama_cut, drops=1)
    assert dropped(Embedding(cut)) == [(24, 32)]
    assert dropped(TransformerLayer(cut)) == [(24, 32)] * 2
    unfused = replace(gpt, drops=1, model=replace(gpt.model, attention="unfused"))
    weights = (gpt.tokens, gpt.heads * gpt.length)
    block = (gpt.tokens, gpt.hidden)
    assert dropped(TransformerLayer(unfused)) == [weights, block, block]
