"""What every layer calls, each alone, by hand: a grouped-query SwiGLU model on two devices, a GPT model on one."""

from collections import Counter
from typing import Any

from kernelcast.runtime import Parallelism
from kernelcast.runtime.request.fields import Recompute
from kernelcast.runtime.step.layers.attention import attention
from kernelcast.runtime.step.layers.loss import embedding, loss
from kernelcast.runtime.step.layers.mlp import mlp
from kernelcast.runtime.step.layers.transformer_layer import transformer_layer
from kernelcast.runtime.step.op import Call, Ops, computing
from kernelcast.runtime.step.passes import Passes
from kernelcast.runtime.step.recomputation import recomputed
from kernelcast.runtime.step.sizes import Sizes
from tests.runtime.step.layers.conftest import Listed, changed, collectives, listed


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


def test_attention_in_8_bit_is_an_operator_of_its_own(llama: Sizes) -> None:
    usual, narrow = (
        Passes(attention(changed(llama, fp8_recipe="tensorwise", fp8_attention=one))) for one in (False, True)
    )
    own = [
        [(call.operator, call.shape) for call in found.calls if call.operator.startswith("flash")]
        for found in (narrow.forward, narrow.backward, usual.backward)
    ]
    heads = (3, 16, 4, 2, 6)
    assert own == [*[[("flash_attention_float8", heads)]] * 2, [("flash_attention", heads)]]


def test_llama(llama: Sizes) -> None:
    assert listed(computing(attention(llama))) == LLAMA_ATTENTION
    assert listed(computing(mlp(llama))) == LLAMA_MLP
    assert listed(computing(embedding(llama))) == once(embedding=(48, 256, 32), embedding_mask=(48, 32))
    assert listed(computing(loss(llama))) == once(
        rms_norm=(3, 16, 32), gemm__logits=(48, 32, 256), cross_entropy=(3, 16, 256)
    )
    norm, add = once(rms_norm=(3, 16, 32), residual_add=(3, 16, 32))
    assert listed(computing(transformer_layer(llama))) == [
        *(norm, *LLAMA_ATTENTION, add),
        *(norm, *LLAMA_MLP, add),
    ]


def test_gpt(gpt: Sizes) -> None:
    assert listed(computing(attention(gpt))) == GPT_ATTENTION
    assert listed(computing(mlp(gpt))) == GPT_MLP
    assert listed(computing(embedding(gpt))) == once(embedding=(15, 128, 8))
    assert listed(computing(loss(gpt))) == once(
        layer_norm=(3, 5, 8), gemm__logits=(15, 8, 128), cross_entropy=(3, 5, 128)
    )
    norm, add = once(layer_norm=(3, 5, 8), residual_add=(3, 5, 8))
    assert listed(computing(transformer_layer(gpt))) == [
        *(norm, *GPT_ATTENTION, add),
        *(norm, *GPT_MLP, add),
    ]


def test_sequence_parallelism_cuts_norms_and_residuals(llama_cut: Sizes) -> None:
    found = {name: shape for name, shape, _ in listed(computing(transformer_layer(llama_cut)))}
    assert (found["rms_norm"], found["residual_add"]) == ((3, 8, 32), (3, 8, 32))
    assert listed(computing(attention(llama_cut))) == LLAMA_ATTENTION
    assert listed(computing(mlp(llama_cut))) == LLAMA_MLP
    assert listed(computing(loss(llama_cut)))[0] == ("rms_norm", (3, 8, 32), 1)


def exposed(ops: Ops) -> tuple[Listed, Listed]:
    """Collectives of both passes that overlap nothing."""
    passes = Passes(ops)
    return collectives(passes.forward.calls), collectives(passes.backward.calls)


def test_collectives(llama: Sizes) -> None:
    whole, of_loss = ("all_reduce/tensor", (1536, 1, 2)), ("all_reduce/tensor", (48, 1, 2), 3)
    assert exposed(transformer_layer(llama)) == ([(*whole, 2)], [(*whole, 2)])
    assert exposed(embedding(llama)) == ([(*whole, 1)], [])
    assert exposed(loss(llama)) == ([of_loss], [(*whole, 1)])
    for part in (attention(llama), mlp(llama)):
        assert exposed(part) == ([], [])


def test_collectives_of_a_cut_sequence(llama_cut: Sizes) -> None:
    gather, scatter = ("all_gather/tensor", (768, 1, 2)), ("reduce_scatter/tensor", (1536, 1, 2))
    of_loss = ("all_reduce/tensor", (48, 1, 2), 3)
    assert exposed(transformer_layer(llama_cut)) == ([(*gather, 2), (*scatter, 2)],) * 2
    assert exposed(embedding(llama_cut)) == ([(*scatter, 1)], [(*gather, 1)])
    assert exposed(loss(llama_cut)) == ([(*gather, 1), of_loss], [(*scatter, 1)])


def test_a_single_device_calls_no_collective(gpt: Sizes) -> None:
    for ops in (transformer_layer(gpt), embedding(gpt), loss(gpt)):
        assert exposed(ops) == ([], [])


def test_directions_of_the_two_passes(llama: Sizes) -> None:
    passes = Passes(tuple(one for one in transformer_layer(llama) if not one.collective))
    names = ["rms_norm", "rope", "flash_attention", "residual_add", "swiglu"]
    linears = ["qkv", "attention_output", "mlp_gate_up", "mlp_down"]
    ahead, back = (
        Counter((call.role or call.operator, str(call.direction)) for call in one.calls)
        for one in (passes.forward, passes.backward)
    )
    twice = {"rms_norm": 2, "residual_add": 2}
    assert ahead == {(name, "forward"): twice.get(name, 1) for name in [*names, *linears]}
    # Forward, queries, keys and values are views of one product.
    assert back == (
        {(name, "backward"): twice.get(name, 1) for name in [*names, "qkv_split"]}
        | {(name, f"{of}_gradient"): 1 for name in linears for of in ("input", "weight")}
    )


def again(s: Sizes, recompute: Recompute, *modules: Any, stops: bool = False) -> tuple[Call, ...]:
    """Calls that the backward pass of a layer runs again."""
    layout = Parallelism.unchecked(
        recompute=recompute, recompute_modules=modules or ("core_attn",), recompute_early_stop=stops
    )
    ops = transformer_layer(s)
    return Passes(ops).rerun(recomputed(layout, ops)).calls


def named(calls: tuple[Call, ...]) -> Counter[str]:
    """Calls by role, or operator; an operator of the tensor-parallel group is its role."""
    return Counter(one.operator if one.role in ("", "tensor") else one.role for one in calls)


def test_what_recomputation_runs_again(llama: Sizes) -> None:
    assert again(llama, "none") == ()
    assert listed(again(llama, "selective")) == once(flash_attention=(3, 16, 4, 2, 6))
    assert again(llama, "full") == Passes(transformer_layer(llama)).forward.calls


def test_a_checkpoint_that_stops_early_leaves_out_what_follows_the_last_kept_tensor(
    llama: Sizes, llama_cut: Sizes, gpt: Sizes
) -> None:
    def not_again(s: Sizes) -> dict[str, int]:
        found = named(Passes(transformer_layer(s)).forward.calls)
        found.subtract(named(again(s, "full", stops=True)))
        assert min(found.values()) >= 0
        return dict(+found)

    last = {"mlp_down": 1, "residual_add": 1}
    assert not_again(llama) == {**last, "all_reduce": 1}
    assert not_again(llama_cut) == {**last, "reduce_scatter": 1}
    assert not_again(gpt) == {**last, "bias_add": 1}
    parallel = changed(llama, parallel_residual=True, forward_syncs=1)
    assert not_again(parallel) == {"mlp_down": 1, "residual_add": 2, "all_reduce": 1}
    # The mask of a dropout is kept behind the last product.
    assert not_again(changed(gpt, dropout=0.1)) == {"residual_add": 1}


def test_selective_recomputation_of_modules(llama: Sizes) -> None:
    def runs(*modules: str, stops: bool = False) -> Counter[str]:
        return named(again(llama, "selective", *modules, stops=stops))

    assert runs("core_attn") == {"flash_attention": 1}
    assert runs("layernorm") == {"rms_norm": 2}
    of_mlp = {"mlp_gate_up": 1, "swiglu": 1}
    assert runs("mlp") == {**of_mlp, "mlp_down": 1, "all_reduce": 1}
    assert runs("mlp", stops=True) == of_mlp
    assert runs("core_attn", "mlp", "layernorm") == runs("core_attn") + runs("layernorm") + runs("mlp")


def test_dropout_runs_after_embedding_attention_and_mlp_and_on_weights(llama_cut: Sizes, gpt: Sizes) -> None:
    def dropped(ops: Ops) -> list[tuple[int, ...]]:
        return [shape for name, shape, _ in listed(computing(ops)) if name == "dropout"]

    assert not dropped(transformer_layer(gpt))
    # 3 samples of 16 tokens, cut in 2 along the sequence; d = 32.
    cut = changed(llama_cut, dropout=0.1)
    assert dropped(embedding(cut)) == [(24, 32)]
    assert dropped(transformer_layer(cut)) == [(24, 32)] * 2
    unfused = changed(gpt, dropout=0.1, attention="unfused")
    weights, block = (gpt.tokens, gpt.heads * gpt.length), (gpt.tokens, gpt.hidden)
    assert dropped(transformer_layer(unfused)) == [weights, block, block]
