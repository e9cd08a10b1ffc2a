"""Linears in 8 bit, and frozen ones with adapters, by hand: calls, parameters, bytes; what an update then does."""

from dataclasses import replace

import pytest

from kernelcast.runtime import Cluster, Parallelism, UsageError
from kernelcast.runtime.memory import stage_memory
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.step.calls import Calls, backward, forward
from kernelcast.runtime.step.decomposition import Decomposition, decompose
from kernelcast.runtime.step.layers.embedding import Embedding
from kernelcast.runtime.step.layers.experts import Experts
from kernelcast.runtime.step.layers.linear import Linears
from kernelcast.runtime.step.layers.loss import Loss
from kernelcast.runtime.step.layers.sizes import Kept, Sizes
from kernelcast.runtime.step.layers.transformer_layer import TransformerLayer
from kernelcast.runtime.step.parameters import held_by
from tests.runtime.step.layers.conftest import GPT, LLAMA
from tests.runtime.step.layers.test_experts import sizes as expert_sizes

TENSORWISE, BLOCKWISE = Linears(recipe="tensorwise"), Linears(recipe="blockwise")
ADAPTED = Linears(rank=2)
LAYOUT = Parallelism(pp=2, tp=2, dp=2, micro_batch=3, micro_batches=2)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


def products(calls: Calls) -> list[tuple[str, str, str, tuple[int, ...]]]:
    return [
        (one.operator, one.role, one.direction.value, one.shape) for one in calls if "gemm" in one.operator
    ]


def parts(model: object = LLAMA, **changes: object) -> Decomposition:
    layout = replace(LAYOUT, **changes)
    return decompose(
        model=model, parallelism=layout, cluster=Cluster(gpus_per_node=4), bucket_entries=1 << 30
    )  # type: ignore[arg-type]


def test_linears_of_a_layer_in_8_bit_and_nothing_else(llama: Sizes) -> None:
    usual, cast = TransformerLayer(llama), TransformerLayer(replace(llama, linears=TENSORWISE))
    name = "gemm_float8_tensor"
    assert products(forward(cast.calls)) == [
        (name, "qkv", "forward", (48, 32, 48)),
        (name, "attention_output", "forward", (48, 24, 32)),
        (name, "mlp_gate_up", "forward", (48, 32, 40)),
        (name, "mlp_down", "forward", (48, 20, 32)),
    ]
    assert {one[2] for one in products(backward(cast.calls))} == {"input_gradient", "weight_gradient"}
    assert [one._replace(operator="gemm") if one.operator == name else one for one in cast.calls] == list(
        usual.calls
    )
    ends = [*Embedding(cast.sizes).calls, *Loss(cast.sizes).calls]
    assert ends == [*Embedding(llama).calls, *Loss(llama).calls]
    assert cast.parameters == usual.parameters


def test_only_the_linears_that_are_asked_for(llama: Sizes) -> None:
    some = replace(llama, linears=Linears(recipe="blockwise", in_float8=("mlp",)))
    assert [one.operator for one in TransformerLayer(some).calls if one.role] == [
        "gemm",
        "gemm",
        "gemm_float8_block",
        "gemm_float8_block",
    ]


def test_experts_in_8_bit_and_their_router_not() -> None:
    layer = Experts(expert_sizes(fp8_recipe="blockwise"))
    assert products(forward(layer.calls)) == [
        ("gemm", "router", "forward", (24, 32, 8)),
        ("grouped_gemm_float8_block", "experts_gate_up", "forward", (2, 24, 32, 40)),
        ("grouped_gemm_float8_block", "experts_down", "forward", (2, 24, 20, 32)),
        ("gemm_float8_block", "shared_gate_up", "forward", (48, 32, 24)),
        ("gemm_float8_block", "shared_down", "forward", (48, 12, 32)),
    ]
    usual, cast = (
        Experts(expert_sizes(fp8_recipe=one)).kept_bytes(Kept(element=2)) for one in ("none", "blockwise")
    )
    # A byte less for the rows' inputs (32 and 20 of 48 rows, 12 of 48 tokens); the router keeps 24 · 32 too.
    assert usual - cast == 48 * (32 + 20) + 48 * 12 - 24 * 32


def test_inputs_are_kept_in_8_bit(llama: Sizes) -> None:
    kept = Kept(element=2)
    usual, cast = (
        TransformerLayer(one).kept_bytes(kept) for one in (llama, replace(llama, linears=TENSORWISE))
    )
    # Of 48 tokens: both norms' outputs (32 each) and the activation's (20) take a byte less, while attention keeps its
    # output (24) in 16 bits beside the copy in 8.
    assert usual - cast == 48 * (32 + 32 + 20 - 24)


def test_weights_are_cast_once_per_update() -> None:
    # A layer on one of two devices, as above; both stages have one.
    cast = [((32, 48), 1), ((24, 32), 1), ((32, 40), 1), ((20, 32), 1)]
    whole = parts(fp8_recipe="tensorwise")
    for stage in whole.stages:
        update = whole.update(stage)
        assert [(one.shape, one.count) for one in update.optimizer if one.operator == "float8_cast"] == cast
        usual = parts().update(stage)
        assert [one for one in update.calls if one.operator != "float8_cast"] == list(usual.calls)
    assert not whole.layer.gather
    # With ZeRO-3 every gather is followed by casts of what it brought.
    sharded = parts(fp8_recipe="tensorwise", zero=3)
    assert [(one.shape, one.count) for one in sharded.layer.gather if one.operator == "float8_cast"] == cast
    assert not any(one.operator == "float8_cast" for one in sharded.update(sharded.stages[0]).calls)
    assert OPERATORS["float8_cast"].moved_bytes(Direction.FORWARD, (32, 48), 2) == 4 * 32 * 48


def test_copies_of_weights_in_8_bit() -> None:
    entries = 32 * 48 + 24 * 32 + 32 * 40 + 20 * 32
    layouts = (
        LAYOUT,
        replace(LAYOUT, fp8_recipe="blockwise"),
        replace(LAYOUT, fp8_recipe="blockwise", zero=3),
    )
    model = replace(LLAMA, layers=6)
    usual, cast, sharded = (stage_memory(model, layout)[0].weights_bytes for layout in layouts)
    assert cast - usual == 3 * 2 * entries
    # The layer at work and the next one.
    assert sharded == stage_memory(model, replace(LAYOUT, zero=3))[0].weights_bytes + 2 * 2 * entries


def test_frozen_weights_have_no_gradient_and_adapters_do(llama: Sizes) -> None:
    layer = TransformerLayer(replace(llama, linears=replace(ADAPTED, adapted=("attention",))))
    assert products(forward(layer.attention.calls)) == [
        ("gemm", "qkv", "forward", (48, 32, 48)),
        ("gemm", "adapter_down", "forward", (48, 32, 2)),
        ("gemm", "adapter_up", "forward", (48, 2, 48)),
        ("gemm", "attention_output", "forward", (48, 24, 32)),
        ("gemm", "adapter_down", "forward", (48, 24, 2)),
        ("gemm", "adapter_up", "forward", (48, 2, 32)),
    ]
    gradients = [(role, direction) for _, role, direction, _ in products(backward(layer.calls))]
    both = [("adapter_down", "input_gradient"), ("adapter_down", "weight_gradient")]
    both += [("adapter_up", "input_gradient"), ("adapter_up", "weight_gradient")]
    assert gradients == [
        ("qkv", "input_gradient"),
        *both,
        ("attention_output", "input_gradient"),
        *both,
        ("mlp_gate_up", "input_gradient"),
        ("mlp_down", "input_gradient"),
    ]
    added = [one.shape for one in layer.attention.calls if one.operator == "residual_add"]
    assert added == [(1, 48, 48), (1, 48, 32)]
    assert layer.adapter_parameters == 2 * (32 + 48) + 2 * (24 + 32)


def test_the_ends_of_a_frozen_model(llama: Sizes) -> None:
    frozen = replace(llama, linears=ADAPTED)
    assert not any(one.operator == "embedding" for one in backward(Embedding(frozen).calls))
    assert products(backward(Loss(frozen).calls)) == [("gemm", "logits", "input_gradient", (48, 32, 256))]


def test_biases_of_frozen_linears_have_no_gradient(gpt: Sizes) -> None:
    frozen = TransformerLayer(replace(gpt, linears=ADAPTED))
    assert sum(one.operator == "bias_add" for one in forward(frozen.calls)) == 4
    assert not any(one.operator == "bias_add" for one in backward(frozen.calls))


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_replicas_exchange_adapters_alone(zero: int) -> None:
    # One layer per stage: attention and MLP, in and out, rank 2.
    adapters = 2 * (32 + 48) + 2 * (24 + 32) + 2 * (32 + 40) + 2 * (20 + 32)
    whole = parts(lora_rank=2, zero=zero)
    update = whole.update(whole.stages[0])
    shard = adapters // 2
    assert [(one.operator, one.shape[0]) for one in update.gradients] == (
        [("all_reduce", adapters)] if zero < 2 else []
    )
    assert [one.shape[0] for one in update.optimizer if one.operator == "adam"] == [
        adapters if zero < 2 else shard
    ]
    assert [one.shape[0] for one in whole.layer.scatter] == ([adapters] if zero >= 2 else [])
    layer = TransformerLayer(whole.sizes)
    gathered = [-(-(layer.parameters + adapters) // 2)] if zero == 3 else []
    assert [one.shape[0] for one in whole.layer.gather] == gathered


def test_memory_of_frozen_weights() -> None:
    adapters = 2 * (32 + 48) + 2 * (24 + 32) + 2 * (32 + 40) + 2 * (20 + 32)
    [first, _] = stage_memory(LLAMA, replace(LAYOUT, lora_rank=2, zero=0), dtype="bfloat16")
    [usual, _] = stage_memory(LLAMA, replace(LAYOUT, zero=0), dtype="bfloat16")
    assert first.weights_bytes == usual.weights_bytes + 2 * adapters
    assert (first.gradients_bytes, first.optimizer_bytes) == (2 * adapters, 12 * adapters)


def test_frozen_experts_are_held_and_not_trained() -> None:
    frozen, trained = (TransformerLayer(expert_sizes(lora_rank=rank)) for rank in (2, 0))
    held, usual = held_by(frozen), held_by(trained)
    assert (held.dense, held.experts) == (frozen.adapter_parameters, 0)
    assert (held.frozen, held.frozen_experts) == (usual.dense, usual.experts)
    assert (usual.frozen, usual.frozen_experts) == (0, 0)
    assert usual.experts > 0


def test_frozen_weights_in_8_bit_are_never_cast_again() -> None:
    whole = parts(lora_rank=2, fp8_recipe="tensorwise")
    assert not any(one.operator == "float8_cast" for one in whole.update(whole.stages[0]).calls)


def test_a_stage_without_adapters_updates_nothing() -> None:
    whole = parts(GPT, lora_rank=2, tp=1, layer_counts=(2, 0))
    assert not whole.update(whole.stages[1]).calls


def test_wrong_fields() -> None:
    with pytest.raises(UsageError, match=r"^fp8_recipe is 'mxfp8', expected none, tensorwise or blockwise$"):
        replace(LAYOUT, fp8_recipe="mxfp8")
    with pytest.raises(UsageError, match=r"^lora_linears is .*, expected one or more of attention, mlp$"):
        replace(LAYOUT, lora_linears=("experts",))


def test_further_predictions_are_in_8_bit_or_frozen_too(llama: Sizes) -> None:
    further = replace(llama, model=replace(LLAMA, extra_predictions=1))
    cast, frozen = (Loss(replace(further, linears=one)) for one in (TENSORWISE, ADAPTED))
    names = [one[:2] for one in products(forward(cast.calls))]
    assert names.count(("gemm", "logits")) == 1  # counted twice
    assert ("gemm", "next_token") in names
    assert ("gemm_float8_tensor", "mlp_down") in names
    gradients = [one[1] for one in products(backward(frozen.calls)) if one[2] == "weight_gradient"]
    assert set(gradients) == {"adapter_down", "adapter_up"}
    assert frozen.adapter_parameters == 2 * (32 + 48) + 2 * (24 + 32) + 2 * (32 + 40) + 2 * (20 + 32)


def test_an_adapter_of_rank_1_is_one() -> None:
    one = Linears(rank=1)
    assert one.is_frozen
    # 2 · 3 · 5: the frozen product and its input's gradient, then 3 to 1 and 1 to 5, and their sum with it.
    calls = one.calls("mlp", 2, 3, 5, role="mlp_up")
    assert products(calls) == [
        ("gemm", "mlp_up", "forward", (2, 3, 5)),
        ("gemm", "mlp_up", "input_gradient", (2, 3, 5)),
        ("gemm", "adapter_down", "once", (2, 3, 1)),
        ("gemm", "adapter_up", "once", (2, 1, 5)),
    ]
    assert [(call.operator, call.shape) for call in calls[4:]] == [("residual_add", (1, 2, 5))]
    assert not Linears(rank=0).is_frozen
