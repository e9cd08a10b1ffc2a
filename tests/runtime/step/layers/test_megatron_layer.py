"""A layer of Megatron-core's modules on a cut sequence: what TransformerEngine casts before it gathers."""

import pytest

from kernelcast.runtime.step.layers.transformer_layer import transformer_layer
from kernelcast.runtime.step.sizes import Sizes
from tests.runtime.step.layers.conftest import changed

WHOLE = {
    "gather_attention": 24 * 32,
    "gather_attention_again": 24 * 32,
    "gather_attention_gradient": 24 * 32,
    "gather_mlp": 24 * 32,
    "gather_mlp_again": 24 * 32,
    "gather_mlp_gradient": 24 * 32,
}
"""Entries that one of two devices gives: 24 tokens of hidden size 32."""


def gathered(s: Sizes) -> dict[str, int]:
    return {
        one.name: one.call.shape[0]
        for one in transformer_layer(s)
        if one.call and one.call.operator == "all_gather" and one.call.count
    }


def cast_rows(s: Sizes) -> dict[str, int]:
    return {
        one.name: one.call.shape[0] for one in transformer_layer(s) if one.call and one.name.endswith("_cast")
    }


@pytest.fixture
def megatron(llama_cut: Sizes) -> Sizes:
    return changed(llama_cut, kept_by="megatron", element_bytes=2)


@pytest.mark.parametrize(
    ("recipe", "share", "both"),
    [
        ("none", 1, 1),
        ("rowwise", 1, 1),
        ("tensorwise", 0.5, 1),
        ("delayed", 0.5, 1),
        ("mxfp8", 33 / 64, 2),
        ("nvfp4", 9 / 32, 2),
        ("nvfp4_plain", 9 / 32, 2),
    ],
)
def test_what_is_cast_is_gathered_as_it_is(megatron: Sizes, recipe: str, share: float, both: int) -> None:
    found = gathered(changed(megatron, fp8_recipe=recipe))
    # With scales per block gradients are sent along rows and along columns: either product reads another copy.
    assert found == {
        name: 24 * round(32 * share) * (both if name.endswith("gradient") else 1) for name in WHOLE
    }


def test_userbuffers_and_gpt_modules_gather_16_bit(megatron: Sizes) -> None:
    cast = changed(megatron, fp8_recipe="delayed")
    for other in (changed(cast, tensor_overlap="products"), changed(cast, kept_by="megatron_local")):
        assert gathered(other) == WHOLE


def test_a_device_casts_its_shard(megatron: Sizes) -> None:
    own, whole = (
        cast_rows(changed(megatron, fp8_recipe="nvfp4", tensor_overlap=one)) for one in ("none", "products")
    )
    halved = {name for name in own if own[name] == round(whole[name] / 2)}
    assert halved == {
        "qkv_input_cast",
        "mlp_gate_up_input_cast",
        "attention_output_gradient_cast",
        "mlp_down_gradient_cast",
    }
    assert all(own[name] == whole[name] for name in own.keys() - halved)


def test_adapters_read_16_bit_and_frozen_weights_need_no_second_gather(megatron: Sizes) -> None:
    frozen = changed(megatron, fp8_recipe="delayed", lora_rank=2, lora_linears=("attention",))
    assert gathered(frozen) == {
        "gather_attention": 24 * 32,
        "gather_attention_gradient": 12 * 32,
        "gather_mlp": 12 * 32,
        "gather_mlp_gradient": 12 * 32,
    }


def test_nvfp4_without_transforms_reads_activations_once_less(megatron: Sizes) -> None:
    usual, plain = (cast_rows(changed(megatron, fp8_recipe=one)) for one in ("nvfp4", "nvfp4_plain"))
    # 7.125 and 5.125 bytes per entry of the 3 that the measured cast moves.
    assert (usual["mlp_down_input_cast"], plain["mlp_down_input_cast"]) == (114, 82)
