"""A mixture of experts by hand: what one of eight devices calls, holds and keeps, and how its experts are updated."""

from dataclasses import replace
from typing import Any

import pytest

from kernelcast.runtime import Cluster, Parallelism, UsageError
from kernelcast.runtime.step.calls import backward, forward
from kernelcast.runtime.step.decomposition import decompose
from kernelcast.runtime.step.layers.experts import Experts
from kernelcast.runtime.step.kinds import LayerKind
from kernelcast.runtime.step.modules import MODULES
from kernelcast.runtime.step.layers.sizes import Kept, Sizes
from kernelcast.runtime.step.layers.transformer_layer import TransformerLayer
from kernelcast.runtime.step.parameters import active_parameters, total_parameters
from kernelcast.runtime.step.recomputation import Recomputation
from tests.runtime.step.layers.conftest import MIXTURE, listed

# Two stages of eight devices, tensor-parallel pairs; experts on four devices each, so that two hold the same.
LAYOUT = Parallelism(
    pp=2,
    tp=2,
    dp=4,
    ep=4,
    micro_batch=3,
    micro_batches=2,
    sequence_parallel=True,
    zero=0,
    layer_counts=(2, 2),
)


PROBABILITIES = 24 * 2 * 2
"""One in fp32 goes with every row, two entries of 16 bits."""


def sizes(**changes: object) -> Sizes:
    layout = replace(LAYOUT, **changes)
    return Sizes.of(MIXTURE, layout, Cluster(gpus_per_node=8)).of_kind(LayerKind(has_experts=True))


def test_calls() -> None:
    # 24 of 48 tokens on each of a pair; 24 · 2 rows come in for the device's 2 experts, 24 each.
    assert listed(Experts(sizes()).calls) == [
        ("gemm/router", (24, 32, 8), 1),
        ("router", (24, 8), 1),
        ("permute", (24, 2, 32), 1),
        ("copy", (48, 32), 1),
        ("grouped_gemm/experts_gate_up", (2, 24, 32, 40), 1),
        ("swiglu", (1, 48, 20), 1),
        ("grouped_gemm/experts_down", (2, 24, 20, 32), 1),
        ("copy", (48, 32), 1),
        ("unpermute", (24, 2, 32), 1),
        ("gemm/shared_gate_up", (48, 32, 24), 1),
        ("swiglu", (3, 16, 12), 1),
        ("gemm/shared_down", (48, 12, 32), 1),
        ("residual_add", (3, 8, 32), 1),
    ]


def test_rows_are_sent_and_come_back() -> None:
    # With a row goes its probability in fp32, 4 bytes, once.
    assert listed(Experts(sizes()).forward_collectives) == [
        ("all_to_all/expert", (24 * 2 * 32, 1, 4), 2),
        ("all_to_all/expert", (24 * 2 * 2, 1, 4), 1),
    ]
    assert listed(Experts(sizes(ep=1)).forward_collectives) == []
    cut = listed(Experts(sizes(ep=2, expert_tp=2)).forward_collectives)
    assert cut == [
        ("all_to_all/expert", (1536, 1, 2), 2),
        ("all_to_all/expert", (96, 1, 2), 1),
        ("all_gather/expert_tensor", (1536, 1, 2), 1),
        ("reduce_scatter/expert_tensor", (3072, 1, 2), 1),
    ]


def test_the_fullest_device_decides() -> None:
    found = {name: shape for name, shape, _ in listed(Experts(sizes(expert_imbalance=1.5)).calls)}
    assert found["grouped_gemm/experts_gate_up"] == (2, 36, 32, 40)
    assert found["gemm/router"] == (24, 32, 8)


def test_parameters() -> None:
    layer = Experts(sizes())
    assert layer.expert_parameters == 2 * 3 * 32 * 20
    assert layer.dense_parameters == 8 * 32 + 3 * 32 * 12
    attention, mlp, norms = 4 * 32 * 32, 3 * 32 * 40, 2 * 32
    experts = 8 * 3 * 32 * 20 + 8 * 32 + 3 * 32 * 24
    ends = 2 * 256 * 32 + 32
    assert total_parameters(MIXTURE) == 4 * (attention + norms) + mlp + 3 * experts + ends
    assert total_parameters(MIXTURE) - active_parameters(MIXTURE) == 3 * 6 * 3 * 32 * 20


def test_kept_bytes() -> None:
    # Scores and probabilities in fp32; rows before and within the experts; the shared ones' gate, up and product.
    fused = Kept(element=2, modules=MODULES["megatron"])
    assert Experts(sizes()).kept_bytes(fused) == 2 * 4 * 24 * 8 + 2 * (48 * (32 + 3 * 20) + 48 * 3 * 12)
    # torch keeps the gate after SiLU too, and results twice as they come back, of the fullest device's rows.
    plain, full = (Experts(sizes(expert_imbalance=one)) for one in (1.0, 1.5))
    torch = Kept(element=2)
    assert plain.kept_bytes(torch) == 2 * 4 * 24 * 8 + 2 * (48 * (32 + 4 * 20) + 48 * 4 * 12 + 2 * 48 * 32)
    assert full.kept_bytes(torch) - plain.kept_bytes(torch) == 2 * (24 * (32 + 4 * 20) + 2 * 24 * 32)


def test_gradients_on_their_way() -> None:
    # Rows' gradients with those of the last product's input and of its weights; then with those of gate and up.
    layer = Experts(sizes())
    for modules, of_weights in (("torch", 2 * 20 * 32), ("megatron", 0)):
        found = layer.gradient_bytes(Kept(element=2, modules=MODULES[modules]))
        assert found == (2 * (48 * 32 + 48 * 20 + of_weights), 2 * (48 * 32 + 2 * 48 * 20))


def test_experts_are_combined_across_the_devices_that_hold_them() -> None:
    parts = decompose(
        model=MIXTURE, parallelism=LAYOUT, cluster=Cluster(gpus_per_node=8), bucket_entries=10**9
    )
    first, second = parts.stages
    assert (first.counts, second.counts) == ((1, 1), (2, 0))
    experts = 2 * 3 * 32 * 20
    assert [(one.role, one.shape) for one in parts.update(second).gradients] == [
        ("data", (parts.parameters(second) - 2 * experts, 1, 4)),
        ("expert_data", (2 * experts, 1, 2)),
    ]
    sharded = decompose(
        model=MIXTURE,
        parallelism=replace(LAYOUT, zero=2),
        cluster=Cluster(gpus_per_node=8),
        bucket_entries=10**9,
    )
    adam = next(one for one in sharded.update(second).optimizer if one.operator == "adam")
    assert adam.shape[0] == -(-(parts.parameters(second) - 2 * experts) // 4) + experts


def test_layers_without_experts_have_an_mlp() -> None:
    parts = decompose(
        model=MIXTURE, parallelism=LAYOUT, cluster=Cluster(gpus_per_node=8), bucket_entries=10**9
    )
    with_experts, dense = parts.layers
    assert any(one.role == "mlp_gate_up" for one in dense.forward)
    assert not any(one.operator == "grouped_gemm" for one in dense.forward)
    assert any(one.operator == "grouped_gemm" for one in with_experts.forward)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ep": 3}, "ep is 3, expected a divisor of tp · dp · cp (8)"),
        ({"ep": 4, "expert_tp": 4}, "ep · expert_tp is 4 · 4 = 16, expected a divisor of tp · dp · cp (8)"),
        ({"dp": 8, "ep": 16}, "ep is 16, expected a divisor of experts (8) of model mixture"),
        ({"sequence_parallel": False}, "sequence_parallel is false, expected true with tp 2"),
    ],
)
def test_what_is_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        replace(LAYOUT, **change).check(MIXTURE)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_a_model_without_experts_has_none_to_spread() -> None:
    dense = replace(MIXTURE, experts=0, experts_per_token=0, shared_expert_size=0, dense_layers=0)
    with pytest.raises(UsageError, match=r"^ep is 4, expected 1: model mixture has no experts"):
        LAYOUT.check(dense)


def test_rows_are_sent_in_8_bit_and_come_back_in_16() -> None:
    layer = Experts(sizes(fp8_recipe="blockwise", fp8_dispatch=True))
    sent = [("all_to_all/expert", (size, 1, 4), 1) for size in (768, 1536, PROBABILITIES)]
    assert listed(layer.forward_collectives) == listed(layer.backward_collectives) == sent
    with pytest.raises(UsageError, match=r"^fp8_dispatch is true, expected false with fp8_recipe none$"):
        sizes(fp8_dispatch=True)


def test_exchanges_beside_another_micro_batchs_computing() -> None:
    exposed, hidden = (TransformerLayer(sizes(expert_overlap=one)) for one in (False, True))
    exchange = [("all_to_all/expert", (1536, 1, 4), 2), ("all_to_all/expert", (PROBABILITIES, 1, 4), 1)]
    assert exchange[0] in listed(exposed.forward_collectives)
    assert exchange[0] not in listed(hidden.forward_collectives)
    [ahead] = [one for one in hidden.beside_forward if one.collective]
    [back] = [one for one in hidden.beside_backward if "all_to_all" in str(one.collective)]
    assert listed(ahead.collective) == listed(back.collective) == exchange
    assert (ahead.compute, back.compute) == (forward(hidden.calls), backward(hidden.calls))
    # A dense layer of the same model lists as many pairs, with nothing in it.
    dense = TransformerLayer(hidden.sizes.of_kind(LayerKind()))
    assert len(dense.beside_forward) == len(hidden.beside_forward)
    assert not any(one.collective for one in dense.beside_forward)


@pytest.mark.parametrize("stops_early", [False, True])
@pytest.mark.parametrize("how", [{"kind": "full"}, {"kind": "selective", "modules": ("mlp",)}])
def test_recomputed_experts_exchange_their_rows_again(how: dict[str, Any], stops_early: bool) -> None:
    layer = TransformerLayer(sizes())
    again = layer.recomputed(Recomputation(**how, stops_early=stops_early))
    sent = [(one.shape[0], one.count) for one in again if one.operator == "all_to_all" and one.count]
    assert sent == [(24 * 2 * 32, 2), (PROBABILITIES, 1)]
