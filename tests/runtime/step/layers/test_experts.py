"""A mixture of experts by hand: what one of eight devices calls, holds and keeps, and how its experts are updated."""

from dataclasses import replace
from typing import Any

import pytest

from kernelcast.runtime import Cluster, Parallelism, UsageError
from kernelcast.runtime.step.chunks import DENSE
from kernelcast.runtime.step.decomposition import decompose
from kernelcast.runtime.step.layers.experts import experts
from kernelcast.runtime.step.layers.transformer_layer import transformer_layer
from kernelcast.runtime.step.op import OTHER_MICRO_BATCH, Component, computing, saved_bytes
from kernelcast.runtime.step.parameters import active_parameters, held_parameters, total_parameters
from kernelcast.runtime.step.passes import Passes
from kernelcast.runtime.step.recomputation import recomputed
from kernelcast.runtime.step.sizes import Sizes
from tests.runtime.step.layers.conftest import EXPERTS, MIXTURE, collectives, listed

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


def sizes(**changes: Any) -> Sizes:
    layout = replace(LAYOUT, **changes)
    return Sizes(model=MIXTURE, layout=layout, cluster=Cluster(gpus_per_node=8), kind=EXPERTS)


def test_calls() -> None:
    # 24 of 48 tokens on each of a pair; 24 · 2 rows come in for the device's 2 experts, 24 each.
    assert listed(computing(experts(sizes()))) == [
        ("gemm/shared_gate_up", (48, 32, 24), 1),
        ("swiglu", (3, 16, 12), 1),
        ("gemm/shared_down", (48, 12, 32), 1),
        ("gemm/router", (24, 32, 8), 1),
        ("router", (24, 8), 1),
        ("permute", (24, 2, 32), 1),
        ("copy", (48, 32), 1),
        ("grouped_gemm/experts_gate_up", (2, 24, 32, 40), 1),
        ("swiglu", (1, 48, 20), 1),
        ("grouped_gemm/experts_down", (2, 24, 20, 32), 1),
        ("copy", (48, 32), 1),
        ("unpermute", (24, 2, 32), 1),
        ("residual_add", (3, 8, 32), 1),
    ]


def test_rows_are_sent_and_come_back() -> None:
    # With a row goes its probability in fp32, 4 bytes, once.
    assert collectives(Passes(experts(sizes())).forward.calls) == [
        ("all_to_all/expert", (24 * 2 * 2, 1, 4), 1),
        ("all_to_all/expert", (24 * 2 * 32, 1, 4), 2),
    ]
    assert collectives(Passes(experts(sizes(ep=1))).forward.calls) == []


def test_the_fullest_device_decides() -> None:
    found = {name: shape for name, shape, _ in listed(computing(experts(sizes(expert_imbalance=1.5))))}
    assert found["grouped_gemm/experts_gate_up"] == (2, 36, 32, 40)
    assert found["gemm/router"] == (24, 32, 8)


def test_parameters() -> None:
    held = held_parameters(sizes(), experts(sizes()))
    assert held.experts == 2 * 3 * 32 * 20
    assert held.dense == 8 * 32 + 3 * 32 * 12
    attention, mlp, norms = 4 * 32 * 32, 3 * 32 * 40, 2 * 32
    of_experts = 8 * 3 * 32 * 20 + 8 * 32 + 3 * 32 * 24
    ends = 2 * 256 * 32 + 32
    assert total_parameters(MIXTURE) == 4 * (attention + norms) + mlp + 3 * of_experts + ends
    assert total_parameters(MIXTURE) - active_parameters(MIXTURE) == 3 * 6 * 3 * 32 * 20


def test_kept_bytes() -> None:
    # Scores and probabilities in fp32; rows before and within the experts; the shared ones' gate, up and product.
    scores = 2 * 4 * 24 * 8
    assert saved_bytes(experts(sizes(kept_by="megatron"))) == scores + 2 * (48 * (32 + 3 * 20) + 48 * 3 * 12)
    # torch keeps the gate after SiLU too, and results twice as they come back, of the fullest device's rows.
    plain, full = (saved_bytes(experts(sizes(expert_imbalance=one))) for one in (1.0, 1.5))
    assert plain == scores + 2 * (48 * (32 + 4 * 20) + 48 * 4 * 12 + 2 * 48 * 32)
    assert full - plain == 2 * (24 * (32 + 4 * 20) + 2 * 24 * 32)


def test_experts_in_a_latent_space_read_and_write_smaller_vectors() -> None:
    # Nemotron 3 Super's: the router and the shared experts read hidden states, the routed experts vectors of 8.
    latent = Sizes(
        model=replace(MIXTURE, expert_latent_size=8),
        layout=replace(LAYOUT, kept_by="megatron"),
        cluster=Cluster(gpus_per_node=8),
        kind=EXPERTS,
    )
    found = listed(computing(experts(latent)))
    assert found[3:-1] == [
        ("gemm/router", (24, 32, 8), 1),
        ("router", (24, 8), 1),
        ("gemm/latent_down", (24, 32, 8), 1),
        ("permute", (24, 2, 8), 1),
        ("copy", (48, 8), 1),
        ("grouped_gemm/experts_gate_up", (2, 24, 8, 40), 1),
        ("swiglu", (1, 48, 20), 1),
        ("grouped_gemm/experts_down", (2, 24, 20, 8), 1),
        ("copy", (48, 8), 1),
        ("unpermute", (24, 2, 8), 1),
        ("gemm/latent_up", (24, 8, 32), 1),
    ]
    assert collectives(Passes(experts(latent)).forward.calls) == [
        ("all_to_all/expert", (24 * 2 * 2, 1, 4), 1),
        ("all_to_all/expert", (24 * 2 * 8, 1, 4), 2),
    ]
    held = held_parameters(latent, experts(latent))
    assert held.experts == 2 * 3 * 8 * 20
    assert held.dense == 8 * 32 + 3 * 32 * 12 + 2 * 32 * 8
    # The router keeps the hidden states; of the rows, and of a token's sum, the latent vectors are kept.
    scores, rows = 2 * 4 * 24 * 8, 48 * (8 + 3 * 20) + 48 * 3 * 12
    assert saved_bytes(experts(latent)) == scores + 2 * (rows + 24 * 8)


def test_gradients_on_their_way() -> None:
    # Gradients of rows with the last product's input and weights; then with gate and up.
    for modules, of_weights in (("torch", 2 * 20 * 32), ("megatron", 0)):
        found = [one.gradients for one in experts(sizes(kept_by=modules)) if one.gradients]
        assert found == [2 * (48 * 32 + 2 * 48 * 20), 2 * (48 * 32 + 48 * 20 + of_weights)]


def test_experts_are_combined_across_the_devices_that_hold_them() -> None:
    parts, sharded = (
        decompose(
            model=MIXTURE,
            parallelism=replace(LAYOUT, zero=zero),
            cluster=Cluster(gpus_per_node=8),
            bucket_entries=10**9,
        )
        for zero in (0, 2)
    )
    first, second = parts.stages
    assert (first.counts, second.counts) == ((1, 1), (2, 0))
    of_experts = 2 * 3 * 32 * 20
    dense = parts.parameters(second) - 2 * of_experts
    assert listed(one.call for one in parts.update(second) if one.name == Component.ALL_REDUCE) == [
        ("all_reduce/data", (dense, 1, 4), 1),
        ("all_reduce/expert_data", (2 * of_experts, 1, 2), 1),
    ]
    adam = next(one.call for one in sharded.update(second) if one.name == Component.OPTIMIZER)
    assert adam.shape[0] == -(-dense // 4) + of_experts


def test_layers_without_experts_have_an_mlp() -> None:
    dense, with_experts = (
        {one.name for one in transformer_layer(sizes().of_kind(kind))} for kind in (DENSE, EXPERTS)
    )
    assert ("mlp_gate_up" in dense, "experts_gate_up" in dense) == (True, False)
    assert ("mlp_gate_up" in with_experts, "experts_gate_up" in with_experts) == (False, True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ep": 3}, "ep is 3, expected a divisor of tp · dp · cp (8)"),
        ({"ep": 4, "expert_tp": 4}, "ep · expert_tp (4 · 4) is 16, expected a divisor of tp · dp · cp (8)"),
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
    for change, refused in (
        ({}, "ep is 4, expected 1"),
        ({"ep": 1, "expert_imbalance": 2.0}, "expert_imbalance is 2.0, expected 1"),
        ({"ep": 1, "expert_overlap": True}, "expert_overlap is true, expected false"),
        ({"ep": 1, "expert_tokens": (1, 2, 3)}, "expert_tokens is .1,2,3., expected none"),
    ):
        with pytest.raises(UsageError, match=rf"^{refused}.*: model mixture has no experts"):
            replace(LAYOUT, **change).check(dense)  # type: ignore[arg-type]


def test_rows_are_sent_in_8_bit_and_come_back_in_16() -> None:
    passes = Passes(experts(sizes(fp8_recipe="blockwise", fp8_dispatch=True)))
    sent = [("all_to_all/expert", (size, 1, 4), 1) for size in (PROBABILITIES, 768, 1536)]
    assert collectives(passes.forward.calls) == collectives(passes.backward.calls) == sent
    with pytest.raises(UsageError, match=r"^fp8_dispatch is true, expected false with fp8_recipe none$"):
        sizes(fp8_dispatch=True)


EXCHANGE = [("all_to_all/expert", (PROBABILITIES, 1, 4), 1), ("all_to_all/expert", (1536, 1, 4), 2)]


def test_exchanges_overlap_what_another_micro_batch_computes() -> None:
    ops = transformer_layer(sizes(expert_overlap=True))
    exposed, hidden = Passes(transformer_layer(sizes())), Passes(ops)
    computed = Passes(tuple(one for one in ops if not one.collective))
    for alone, paired, whole in (
        (exposed.forward, hidden.forward, computed.forward),
        (exposed.backward, hidden.backward, computed.backward),
    ):
        assert set(EXCHANGE) <= set(collectives(alone.calls))
        assert not set(EXCHANGE) & set(collectives(paired.calls))
        pair = paired.overlapped[OTHER_MICRO_BATCH]
        assert collectives(pair.collectives) == EXCHANGE
        # All that the layer computes in such a pass.
        assert pair.compute == whole.calls
    dense = Passes(transformer_layer(sizes(expert_overlap=True).of_kind(DENSE)))
    assert OTHER_MICRO_BATCH not in dense.forward.overlapped


@pytest.mark.parametrize("stops_early", [False, True])
@pytest.mark.parametrize(
    "how", [{"recompute": "full"}, {"recompute": "selective", "recompute_modules": ("moe",)}]
)
def test_recomputed_experts_exchange_their_rows_again(how: dict[str, Any], stops_early: bool) -> None:
    s = sizes(**how, recompute_early_stop=stops_early)
    ops = transformer_layer(s)
    again = Passes(ops).rerun(recomputed(s.layout, ops)).calls
    assert [one for one in collectives(again) if one[0] == "all_to_all/expert"] == EXCHANGE
