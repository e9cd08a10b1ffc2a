"""A layer of torchtitan's modules: products of their own, gathers of what is kept, casts before gathers."""

from collections import Counter

import pytest

from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.step.layers.transformer_layer import transformer_layer
from kernelcast.runtime.step.op import Call, saved_bytes
from kernelcast.runtime.step.passes import Passes
from kernelcast.runtime.step.sizes import Sizes
from tests.runtime.step.layers.conftest import changed, collectives


@pytest.fixture
def titan(llama_cut: Sizes) -> Sizes:
    """One of two devices with 48 tokens gathered from 24; hidden size 32."""
    return changed(llama_cut, kept_by="torchtitan", element_bytes=2)


def calls(s: Sizes) -> tuple[tuple[Call, ...], tuple[Call, ...]]:
    passes = Passes(transformer_layer(s))
    forward, backward = (
        (*(call for call in one.calls if not OPERATORS[call.operator].is_collective), *one.collectives)
        for one in (passes.forward, passes.backward)
    )
    return forward, backward


def flops(s: Sizes) -> float:
    passes = Passes(transformer_layer(s))
    return sum(
        one.count * OPERATORS[one.operator].flops(one.direction, one.shape)
        for of in (passes.forward, passes.backward)
        for one in of.calls
        if one.operator.startswith("gemm")
    )


def test_linears_of_one_input_are_products_of_their_own(titan: Sizes) -> None:
    forward, _ = calls(titan)
    shapes = Counter((one.role, one.shape) for one in forward if one.operator == "gemm")
    # Queries of 4 heads of 6, keys and values of 2; gate and up of 20 columns.
    assert {("qkv", (48, 32, 24)), ("qkv", (48, 32, 12)), ("mlp_gate_up", (48, 32, 20))} <= set(shapes)
    fused = changed(titan, kept_by="torch")
    assert flops(titan) == flops(fused)
    parameters = [sum(one.parameters for one in transformer_layer(s)) for s in (titan, fused)]
    assert parameters[0] == parameters[1]


def test_gradients_of_what_several_linears_read_are_added(titan: Sizes) -> None:
    found = {one.name: one for one in transformer_layer(titan) if one.name.endswith("_gradient_sum")}
    moved = {
        name: OPERATORS["residual_add"].elements(one.call.shape)
        for name, one in found.items()
        if one.call is not None
    }
    # Three gradients are read and one is written, like 4/3 additions; or two and one.
    assert moved == {"qkv_gradient_sum": 64 * 32, "mlp_gate_up_gradient_sum": 48 * 32}
    assert all(one.directions == (Direction.BACKWARD,) for one in found.values())


def test_what_is_kept_whole_is_not_gathered_again(titan: Sizes) -> None:
    _, backward = calls(titan)
    _, again = calls(changed(titan, kept_by="torch"))
    gathers = [
        sum(count for name, _, count in collectives(found) if name.startswith("all_gather"))
        for found in (backward, again)
    ]
    # Of attention and MLP the output's gradient; not what their linears read.
    assert gathers == [2, 4]


@pytest.mark.parametrize(("recipe", "share"), [("tensorwise", 0.5), ("rowwise", 1.0)])
def test_one_scale_per_tensor_lets_shards_be_cast_and_gathered(
    titan: Sizes, recipe: str, share: float
) -> None:
    cast = changed(titan, fp8_recipe=recipe)
    for plain, narrow in zip(calls(titan), calls(cast), strict=True):
        sent, sent_narrow = (
            {name: shape[0] for name, shape, _ in collectives(found)} for found in (plain, narrow)
        )
        assert sent_narrow["all_gather/tensor"] == share * sent["all_gather/tensor"]
        assert sent_narrow["reduce_scatter/tensor"] == sent["reduce_scatter/tensor"]
    rows = {
        one.name: one.call.shape[0]
        for one in transformer_layer(cast)
        if one.call and one.name.endswith("_cast")
    }
    # Of what is gathered a device casts its half, and transposes all that arrives: less than all three passes over it.
    assert (rows["qkv_input_cast"] < rows["attention_output_input_cast"]) == (share < 1)
    assert (rows["mlp_down_gradient_cast"] < rows["mlp_gate_up_gradient_cast"]) == (share < 1)
    assert saved_bytes(transformer_layer(cast)) == saved_bytes(transformer_layer(titan))
