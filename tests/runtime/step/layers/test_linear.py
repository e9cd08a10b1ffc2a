"""Linears in 8 bit, and frozen ones with adapters, by hand: calls, parameters, bytes; what an update then does."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from kernelcast.runtime import Cluster, ModelConfig, Parallelism, UsageError, load_model
from kernelcast.runtime.memory.stages import stage_memory
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.step.decomposition import Decomposition, decompose
from kernelcast.runtime.step.layers.experts import experts
from kernelcast.runtime.step.layers.linear import linear
from kernelcast.runtime.step.layers.loss import embedding, loss
from kernelcast.runtime.step.layers.transformer_layer import transformer_layer
from kernelcast.runtime.step.op import Call, Calls, Component, Ops, computing, saved_bytes
from kernelcast.runtime.step.parameters import held_parameters
from kernelcast.runtime.step.passes import Passes
from kernelcast.runtime.step.sizes import Sizes
from tests.runtime.step.layers.conftest import GPT, LLAMA, changed
from tests.runtime.step.layers.test_experts import sizes as expert_sizes

LAYOUT = Parallelism(pp=2, tp=2, dp=2, micro_batch=3, micro_batches=2)
ADAPTERS = 2 * (32 + 48) + 2 * (24 + 32) + 2 * (32 + 40) + 2 * (20 + 32)
"""Parameters of a layer's adapters of rank 2, on one of two devices: attention and MLP, in and out."""


def products(calls: Iterable[Call]) -> list[tuple[str, str, str, tuple[int, ...]]]:
    return [
        (one.operator, one.role, one.direction.value, one.shape) for one in calls if "gemm" in one.operator
    ]


def forward(ops: Ops) -> Calls:
    return Passes(ops).forward.calls


def backward(ops: Ops) -> Calls:
    return Passes(ops).backward.calls


def parts(model: ModelConfig = LLAMA, **changes: Any) -> Decomposition:
    layout = replace(LAYOUT, **changes)
    cluster = Cluster(gpus_per_node=4)
    return decompose(model=model, parallelism=layout, cluster=cluster, bucket_entries=1 << 30)


def updated(parts: Decomposition, *names: str) -> Calls:
    """Calls of the first stage's update; of ops of some names alone, if any are given."""
    ops = parts.update(parts.stages[0])
    return tuple(call for one in ops for call in one.forward() if not names or one.name in names)


def test_linears_of_a_layer_in_8_bit_and_nothing_else(llama: Sizes) -> None:
    in_8_bit = changed(llama, fp8_recipe="tensorwise")
    usual, cast = transformer_layer(llama), transformer_layer(in_8_bit)
    name = "gemm_float8_tensor"
    assert products(forward(cast)) == [
        (name, "qkv", "forward", (48, 32, 48)),
        (name, "attention_output", "forward", (48, 24, 32)),
        (name, "mlp_gate_up", "forward", (48, 32, 40)),
        (name, "mlp_down", "forward", (48, 20, 32)),
    ]
    assert {one[2] for one in products(backward(cast))} == {"input_gradient", "weight_gradient"}
    others = [one._replace(operator="gemm") if one.operator == name else one for one in computing(cast)]
    assert [one for one in others if one.operator != "float8_cast"] == list(computing(usual))
    # Six bytes of an entry, what two casts move: inputs forward, gradients of outputs backward.
    casts = [one.shape for one in forward(cast) if one.operator == "float8_cast"]
    assert casts == [(96, 32), (96, 24), (96, 32), (96, 20)]
    casts = [one.shape for one in backward(cast) if one.operator == "float8_cast"]
    assert sorted(casts) == sorted([(96, 48), (96, 32), (96, 40), (96, 32)])
    for end in (embedding, loss):
        assert computing(end(in_8_bit)) == computing(end(llama))
    assert held_parameters(in_8_bit, cast) == held_parameters(llama, usual)
    # Of 48 tokens: both norms' outputs (32 each) and the activation's (20) take a byte less, while attention keeps its
    # output (24) in 16 bits and the copy in 8.
    assert saved_bytes(usual) == saved_bytes(cast)  # torch's linears save what comes
    usual, cast = (transformer_layer(changed(one, kept_by="megatron")) for one in (llama, in_8_bit))
    assert saved_bytes(usual) - saved_bytes(cast) == 48 * (32 + 32 + 20 - 24)


def test_only_the_linears_that_are_asked_for(llama: Sizes) -> None:
    some = transformer_layer(changed(llama, fp8_recipe="blockwise", fp8_linears=("mlp",)))
    assert [one.operator for one in computing(some) if one.role] == ["gemm"] * 2 + ["gemm_float8_block"] * 2


def test_experts_in_8_bit_and_their_router_not() -> None:
    usual, cast = (experts(expert_sizes(fp8_recipe=one, kept_by="megatron")) for one in ("none", "blockwise"))
    assert products(forward(cast)) == [
        ("gemm_float8_block", "shared_gate_up", "forward", (48, 32, 24)),
        ("gemm_float8_block", "shared_down", "forward", (48, 12, 32)),
        ("gemm", "router", "forward", (24, 32, 8)),
        ("grouped_gemm_float8_block", "experts_gate_up", "forward", (2, 24, 32, 40)),
        ("grouped_gemm_float8_block", "experts_down", "forward", (2, 24, 20, 32)),
    ]
    # A byte less for the rows' inputs (32 and 20 of 48 rows, 12 of 48 tokens); the router keeps 24 · 32 too. Each 128
    # entries in 8 bit have a scale of 4 bytes.
    own, router = 48 * (32 + 20) + 48 * 12, 24 * 32
    assert saved_bytes(usual) - saved_bytes(cast) == own - router - (own + router) * 4 / 128


def test_weights_are_cast_once_per_update() -> None:
    # A layer on one of two devices, as above; a stage has one.
    weights = [((64, 48), 1), ((48, 32), 1), ((64, 40), 1), ((40, 32), 1)]
    whole, sharded = (parts(fp8_recipe="tensorwise", zero=zero) for zero in (1, 3))
    cast = updated(whole, Component.WEIGHT_CAST)
    assert [(one.shape, one.count) for one in cast] == weights
    assert tuple(one for one in updated(whole) if one not in cast) == updated(parts())
    assert whole.shards["layer 0"][0] == ()
    # With ZeRO-3 every gather is followed by casts of what it brought.
    gather, _ = sharded.shards["layer 0"]
    assert [(one.shape, one.count) for one in gather if one.operator == "float8_cast"] == weights
    assert not updated(sharded, Component.WEIGHT_CAST)
    assert OPERATORS["float8_cast"].moved_bytes(Direction.FORWARD, (32, 48), 2) == 3 * 32 * 48


def test_a_cast_weight_is_gathered_as_one_copy() -> None:
    usual, cast = (parts(fp8_recipe="mxfp8", zero=3, fp8_weights=one) for one in (False, True))
    entries = [parts.shards["layer 0"][0][0].shape[0] for parts in (usual, cast)]
    weights = 32 * 48 + 24 * 32 + 32 * 40 + 20 * 32
    assert entries[0] - entries[1] == pytest.approx(weights * (1 - (1 + 1 / 32) / 2) / 2, abs=1)


def test_copies_of_weights_in_8_bit() -> None:
    entries = 32 * 48 + 24 * 32 + 32 * 40 + 20 * 32
    layouts = (
        LAYOUT,
        replace(LAYOUT, fp8_recipe="blockwise"),
        replace(LAYOUT, fp8_recipe="blockwise", zero=3),
    )
    model = replace(LLAMA, layers=6)

    def weights(layout: Parallelism, **others: Any) -> int:
        return stage_memory(model, replace(layout, kept_by="megatron"), **others)[0].weights_bytes

    usual, cast, sharded = map(weights, layouts)
    assert cast - usual == 3 * 2 * entries * (1 + 4 / 128)  # with scales
    # The layer at work and the next one.
    assert sharded == weights(replace(LAYOUT, zero=3)) + 2 * 2 * entries * (1 + 4 / 128)
    # Without the 16-bit form a byte less, and without the transposed one where products read either.
    alone = replace(LAYOUT, fp8_recipe="tensorwise", fp8_weights=True)
    assert weights(alone) == usual
    assert weights(alone, architecture="Blackwell") == usual - 3 * entries
    assert (
        weights(replace(alone, fp8_recipe="blockwise"), architecture="Blackwell")
        == usual + 3 * 2 * entries * 4 / 128
    )


def test_frozen_weights_have_no_gradient_and_adapters_do(llama: Sizes) -> None:
    frozen = changed(llama, lora_rank=2, lora_linears=("attention",))
    ops = transformer_layer(frozen)
    assert [one[1:] for one in products(forward(ops))] == [
        ("qkv", "forward", (48, 32, 48)),
        ("adapter_down", "forward", (48, 32, 2)),
        ("adapter_up", "forward", (48, 2, 48)),
        ("attention_output", "forward", (48, 24, 32)),
        ("adapter_down", "forward", (48, 24, 2)),
        ("adapter_up", "forward", (48, 2, 32)),
        ("mlp_gate_up", "forward", (48, 32, 40)),
        ("mlp_down", "forward", (48, 20, 32)),
    ]
    both = [("adapter_down", "input_gradient"), ("adapter_down", "weight_gradient")]
    both += [("adapter_up", "input_gradient"), ("adapter_up", "weight_gradient")]
    assert [(role, direction) for _, role, direction, _ in products(backward(ops))] == [
        ("qkv", "input_gradient"),
        *both,
        ("attention_output", "input_gradient"),
        *both,
        ("mlp_gate_up", "input_gradient"),
        ("mlp_down", "input_gradient"),
    ]
    added = [one.shape for one in computing(ops) if one.operator == "residual_add"]
    assert added == [(1, 48, 48), (1, 48, 32), (3, 16, 32), (3, 16, 32)]
    scaled = [one.shape for one in (*forward(ops), *backward(ops)) if one.role == "adapter_scale"]
    assert scaled == 2 * [(48, 48), (48, 32)]
    assert held_parameters(frozen, ops).dense == 2 * (32 + 48) + 2 * (24 + 32)


@pytest.mark.parametrize(
    ("linears", "shapes"),
    [
        (("q_proj",), [(48, 32, 2), (48, 2, 24)]),
        (("k_proj", "v_proj"), [(48, 32, 2), (48, 2, 24)]),
        (("o_proj",), [(48, 24, 2), (48, 2, 32)]),
        (("up_proj",), [(48, 32, 2), (48, 2, 20)]),
        (("down_proj",), [(48, 20, 2), (48, 2, 32)]),
    ],
)
def test_adapters_of_single_linears(
    llama: Sizes, linears: tuple[str, ...], shapes: list[tuple[int, ...]]
) -> None:
    frozen = changed(llama, lora_rank=2, lora_linears=linears)
    ops = transformer_layer(frozen)
    found = [shape for _, role, _, shape in products(forward(ops)) if role.startswith("adapter")]
    assert found == shapes
    assert held_parameters(frozen, ops).dense == sum(k * n for _, k, n in shapes)


def test_the_ends_of_a_frozen_model(llama: Sizes) -> None:
    frozen = changed(llama, lora_rank=2)
    assert not any(one.operator == "embedding" for one in backward(embedding(frozen)))
    assert products(backward(loss(frozen))) == [("gemm", "logits", "input_gradient", (48, 32, 256))]


def test_biases_of_frozen_linears_have_no_gradient(gpt: Sizes) -> None:
    frozen = transformer_layer(changed(gpt, lora_rank=2))
    assert sum(one.operator == "bias_add" for one in forward(frozen)) == 4
    assert not any(one.operator == "bias_add" for one in backward(frozen))


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_replicas_exchange_adapters_alone(zero: int) -> None:
    whole = parts(lora_rank=2, zero=zero)
    gradients = [(one.operator, one.shape[0]) for one in updated(whole, Component.ALL_REDUCE)]
    assert gradients == ([("all_reduce", ADAPTERS)] if zero < 2 else [])
    [adam] = updated(whole, Component.OPTIMIZER)
    assert adam.shape[0] == (ADAPTERS if zero < 2 else ADAPTERS // 2)
    gather, scatter = whole.shards["layer 0"]
    assert [one.shape[0] for one in scatter] == ([ADAPTERS] if zero >= 2 else [])
    own = held_parameters(whole.sizes, whole.layers[0].ops).total
    assert [one.shape[0] for one in gather] == ([-(-own // 2)] if zero == 3 else [])


def test_memory_of_frozen_weights() -> None:
    [first, _] = stage_memory(LLAMA, replace(LAYOUT, lora_rank=2, zero=0), dtype="bfloat16")
    [usual, _] = stage_memory(LLAMA, replace(LAYOUT, zero=0), dtype="bfloat16")
    assert first.weights_bytes == usual.weights_bytes + 2 * ADAPTERS
    assert (first.gradients_bytes, first.optimizer_bytes) == (2 * ADAPTERS, 12 * ADAPTERS)


def test_frozen_experts_are_held_and_not_trained() -> None:
    held, usual = (
        held_parameters(s, transformer_layer(s)) for s in (expert_sizes(lora_rank=rank) for rank in (2, 0))
    )
    assert (held.frozen, held.frozen_experts) == (usual.dense, usual.experts)
    assert (usual.frozen, usual.frozen_experts, held.experts) == (0, 0, 0)
    # Adapters of attention and of the shared experts, not of the routed ones: QKV 48, gate and up 24.
    assert held.dense == 2 * (32 + 48) + 2 * (16 + 32) + 2 * (32 + 24) + 2 * (12 + 32)
    assert usual.experts > 0


def test_what_frozen_weights_read_is_cast_to_one_copy(llama: Sizes) -> None:
    ops = transformer_layer(changed(llama, fp8_recipe="delayed", lora_rank=4))
    # Two bytes read and one written, as the cast that was measured; no weight gradient reads a transposed copy.
    casts = [one.shape for one in forward(ops) if one.operator == "float8_cast"]
    assert casts == [(48, 32), (48, 24), (48, 32), (48, 20)]


@pytest.mark.parametrize(("recipe", "weights"), [("delayed", True), ("tensorwise", False), ("nvfp4", True)])
def test_frozen_weights_in_8_bit_are_transposed_for_the_input_gradient(
    llama: Sizes, recipe: str, weights: bool
) -> None:
    ops = transformer_layer(changed(llama, fp8_recipe=recipe, lora_rank=4, fp8_weights=weights))
    found = [
        [one.shape for one in of if one.role == "frozen_transposition"]
        for of in (forward(ops), backward(ops))
    ]
    # A byte read and one written, of the four that a copy moves.
    shapes = [(16, 48), (12, 32), (16, 40), (10, 32)]
    assert found == [[], shapes if recipe == "delayed" else []]


def test_frozen_weights_in_8_bit_are_never_cast_again() -> None:
    assert not updated(parts(lora_rank=2, fp8_recipe="tensorwise"), Component.WEIGHT_CAST)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_weights_in_4_bit_are_dequantised_before_every_product_that_reads_them(recompute: str) -> None:
    frozen, in_4_bit = (
        parts(tp=1, lora_rank=2, recompute=recompute, frozen_weights=one) for one in ("same", "nf4")
    )
    usual, own = ([one for _, one in each.calls(0)] for each in (frozen, in_4_bit))
    copies = [one for one in own if one.operator == "copy" and one.role != "adapter_scale"]
    # Read in 0.5625 bytes and written in 2, of the 4 that a copy moves; QKV, output, gate and up, down.
    once = [(round(k * 2.5625 / 4), n) for k, n in ((32, 96), (48, 32), (32, 80), (40, 32))]
    times = 3 if recompute == "full" else 2
    assert sorted(one.shape for one in copies) == sorted(once * times)
    assert Counter(own) - Counter(copies) == Counter(usual)
    assert in_4_bit.parameters(in_4_bit.stages[0]) == frozen.parameters(frozen.stages[0])


def test_experts_in_4_bit_are_dequantised_together() -> None:
    ops = transformer_layer(expert_sizes(lora_rank=2, frozen_weights="nf4_double"))
    [of_experts] = [one.call for one in ops if one.name == "experts_down_dequantisation"]
    assert of_experts is not None
    assert of_experts.shape == (round(2 * 20 * (2 + 0.5 + 1 / 64 + 4 / 64 / 256) / 4), 32)


@pytest.mark.parametrize(("kind", "entry_bytes"), [("nf4", 0.5625), ("nf4_double", 0.5159)])
@pytest.mark.parametrize("zero", [0, 3])
def test_memory_of_weights_in_4_bit(kind: str, entry_bytes: float, zero: int) -> None:
    model = load_model("llama-3.1-8b")
    layout = Parallelism(pp=1, tp=1, dp=8, micro_batch=1, micro_batches=1, zero=zero, lora_rank=16)
    [usual] = stage_memory(model, layout, dtype="bfloat16")
    [small] = stage_memory(model, replace(layout, frozen_weights=kind), dtype="bfloat16")
    # Linears of 32 layers: 32 · (4096 · (6144 + 4096) + 3 · 4096 · 14336) entries; embeddings stay as they are.
    layer = 4096 * (6144 + 4096) + 3 * 4096 * 14_336
    saved = 32 * layer * (2 - entry_bytes) / (8 if zero == 3 else 1)
    assert usual.weights_bytes - small.weights_bytes == pytest.approx(saved, rel=1e-4)
    # The largest weight, gate and up, exists in 16 bit while it is used. Of the gathered blocks, a layer and the output
    # projection, the layer is in 4 bit.
    more = 2 * 4096 * 2 * 14_336 - (layer * (2 - entry_bytes) if zero == 3 else 0)
    assert small.working_bytes - usual.working_bytes == pytest.approx(more, rel=0.01)
    for name in ("parameters", "gradients_bytes", "optimizer_bytes", "activations_bytes"):
        assert getattr(small, name) == getattr(usual, name)


def test_weights_in_4_bit_are_gathered_as_they_are() -> None:
    usual, small = (parts(lora_rank=2, zero=3, frozen_weights=one) for one in ("same", "nf4"))
    [[before], [after]] = (each.shards["layer 0"][0] for each in (usual, small))
    entries = 32 * 48 + 24 * 32 + 32 * 40 + 20 * 32
    assert before.shape[0] - after.shape[0] == pytest.approx(entries * (1 - 0.5625 / 2) / 2, abs=1)
    assert updated(usual) == updated(small)


def test_weights_in_4_bit_are_frozen_and_multiply_in_the_trainings_type() -> None:
    with pytest.raises(
        UsageError, match=r"^frozen_weights is 'nf4', expected same with lora_rank 0, or lora_rank above 0$"
    ):
        replace(LAYOUT, frozen_weights="nf4")
    with pytest.raises(UsageError, match=r"^frozen_weights is 'nf4', expected same with fp8_recipe delayed$"):
        replace(LAYOUT, frozen_weights="nf4", lora_rank=2, fp8_recipe="delayed")


def test_a_stage_without_adapters_updates_nothing() -> None:
    assert not updated(parts(GPT, lora_rank=2, tp=1, layer_counts=(0, 2)))


def test_wrong_fields() -> None:
    with pytest.raises(UsageError, match=r"^fp8_recipe is 'fp6', expected none, .*, nvfp4 or nvfp4_plain$"):
        replace(LAYOUT, fp8_recipe="fp6")
    with pytest.raises(
        UsageError, match=r"^lora_linears is .*, expected target modules of PEFT: attention .*, mlp .*"
    ):
        replace(LAYOUT, lora_linears=("experts",))


def test_further_predictions_are_in_8_bit_or_frozen_too(llama: Sizes) -> None:
    further = changed(llama, extra_predictions=1)
    frozen = changed(further, lora_rank=2)
    names = [one[:2] for one in products(forward(loss(changed(further, fp8_recipe="tensorwise"))))]
    assert names.count(("gemm", "logits")) == 2
    assert ("gemm", "next_token") in names
    assert ("gemm_float8_tensor", "mlp_down") in names
    gradients = {one[1] for one in products(backward(loss(frozen))) if one[2] == "weight_gradient"}
    assert gradients == {"adapter_down", "adapter_up"}
    assert held_parameters(frozen, loss(frozen)).dense == ADAPTERS


def test_an_adapter_of_rank_1_is_one(llama: Sizes) -> None:
    # 2 · 3 · 5: the frozen product and its input's gradient, then 3 to 1 and 1 to 5, and their sum with it.
    ops = linear(changed(llama, lora_rank=1), "mlp", "mlp_up", 2, 3, 5)
    both = ("input_gradient", "weight_gradient")
    assert [one[1:] for one in products((*forward(ops), *backward(ops)))] == [
        ("mlp_up", "forward", (2, 3, 5)),
        ("adapter_down", "forward", (2, 3, 1)),
        ("adapter_up", "forward", (2, 1, 5)),
        ("mlp_up", "input_gradient", (2, 3, 5)),
        *(("adapter_down", one, (2, 3, 1)) for one in both),
        *(("adapter_up", one, (2, 1, 5)) for one in both),
    ]
    assert ops[-1].call is not None
    assert (ops[-1].call.operator, ops[-1].call.shape) == ("residual_add", (1, 2, 5))


def test_adapters_that_no_linear_of_the_model_has_are_refused() -> None:
    sparse = replace(LLAMA, experts=4, experts_per_token=2)
    with pytest.raises(
        UsageError, match=r"^lora_linears is 'mlp', expected attention, q_proj, .* or o_proj in model"
    ):
        replace(LAYOUT, sequence_parallel=True, lora_rank=2, lora_linears=("mlp",)).check(sparse)
