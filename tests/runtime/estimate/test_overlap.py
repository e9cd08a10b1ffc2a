"""Steps with collectives overlapped with compute, added up by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import Cluster, Estimate, Estimator, ModelConfig, Parallelism
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.step.op import Component

Make = Callable[..., Path]
TINY: dict[str, Any] = {
    "name": "tiny",
    "hidden_size": 8,
    "sequence_length": 4,
    "attention_heads": 2,
    "layers": 4,
    "vocabulary_size": 100,
}
ONE: dict[str, Any] = {"pp": 1, "tp": 1, "dp": 2, "micro_batch": 1, "micro_batches": 1}
# Forward passes of an operator take 10 µs, backward 20, linears' gradients 12 and 7; what an update runs 5.
PRODUCTS = {
    ("gemm", Direction.FORWARD): 10.0,
    ("gemm", Direction.INPUT_GRADIENT): 12.0,
    ("gemm", Direction.WEIGHT_GRADIENT): 7.0,
}


def us(seconds: float) -> float:
    return round(seconds * 1e6, 6)


def predict(
    bundle: Path, *, model: dict[str, Any] | None = None, gpus_per_node: int = 8, **layout: Any
) -> Estimate:
    return Estimator.load(bundle).predict(
        model=ModelConfig(**TINY | (model or {})),
        parallelism=Parallelism(**ONE | layout),
        cluster=Cluster(gpus_per_node=gpus_per_node),
        interval=False,
    )


# Table III with d = 8, 4 layers, 128 rows of the vocabulary.
PARAMETERS = 4 * (4 * 8 + 8 * 8 * 9 + 8 * 33) + 2 * 8 + 2 * 128 * 8


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_gradients_beside_the_last_backward_pass(make_bundle: Make, share: float) -> None:
    # Four buckets: an all-reduce each of 30 µs.
    bundle = make_bundle({"all_reduce": 30.0})
    overlapped = {"overlap_bucket": -(-PARAMETERS // 4), "exposed_share": share, "zero": 0}
    for micro_batches in (1, 3):
        alone, beside = (
            predict(bundle, **overlapped, micro_batches=micro_batches, overlap_gradients=flag)
            for flag in (False, True)
        )
        # Without overlap the gradients are one bucket, after the pass. With it, three of four buckets overlap with the
        # pass and lengthen it by a share of their time; the last bucket is exposed.
        assert us(alone.components.dp_all_reduce_s) == 30
        assert us(beside.components.dp_all_reduce_s) == 120
        assert us(beside.step_time_s - alone.step_time_s) == pytest.approx(share * 90 + 30 - 30)


def test_gradients_that_outlast_the_pass(make_bundle: Make) -> None:
    bundle = make_bundle({"all_reduce": 4000.0})
    overlapped = {"overlap_bucket": -(-PARAMETERS // 4), "exposed_share": 0.5, "zero": 0}
    alone, beside = (predict(bundle, **overlapped, overlap_gradients=flag) for flag in (False, True))
    [stage] = beside.stages
    # All of the pass after its first quarter overlaps with the network: d' = d + 0.5 · 3/4 · d'. The network starts
    # when that quarter is over, and takes 16,000.
    slowed = us(stage.backward_s) / (1 - 0.375)
    expected = us(alone.step_time_s) - 4000 - us(stage.backward_s) + slowed / 4 + 16000
    assert us(beside.step_time_s) == pytest.approx(expected)


@pytest.mark.parametrize(("gpus_per_node", "shares"), [(4, True), (2, False)])
def test_gradients_take_turns_with_sums_on_the_same_links(
    make_bundle: Make, gpus_per_node: int, shares: bool
) -> None:
    bundle = make_bundle({"all_reduce": 30.0})
    layout = {"tp": 2, "zero": 0, "gpus_per_node": gpus_per_node, "exposed_share": 0.5}
    alone, beside = (
        predict(bundle, **layout, overlap_bucket=32, overlap_gradients=flag) for flag in (False, True)
    )
    [stage] = beside.stages
    pass_us, network_us = us(stage.backward_s), us(beside.components.dp_all_reduce_s)
    buckets = network_us / 30
    # Sums of input gradients: two in each of 4 layers, and the logits'.
    own_us = 9 * 30 if shares else 0
    slower = 0.5 * (1 - 1 / buckets)
    slowed_us = (pass_us - slower * own_us) / (1 - slower)
    assert network_us > slowed_us
    # The network starts with the first bucket, and waits for the sums after it.
    end_us = slowed_us / buckets + network_us + own_us * (1 - 1 / buckets)
    expected = us(alone.step_time_s - alone.components.dp_all_reduce_s) - pass_us + end_us
    assert us(beside.step_time_s) == pytest.approx(expected)


def test_a_stage_without_layers_has_nothing_on_its_links(make_bundle: Make) -> None:
    bundle = make_bundle({"all_reduce": 30.0, "point_to_point": 0.001})
    layout = {"pp": 3, "layer_counts": (2, 0, 2), "tp": 2, "zero": 0, "micro_batches": 3}
    alone, beside = (predict(bundle, **layout, overlap_gradients=flag) for flag in (False, True))
    # One bucket of Megatron-LM's size hides nothing.
    assert beside.step_time_s == alone.step_time_s


def test_parameters_beside_the_first_forward_pass(make_bundle: Make) -> None:
    bundle = make_bundle({"all_gather": 30.0})
    layout = {"overlap_bucket": -(-PARAMETERS // 4), "exposed_share": 0.25, "zero": 1, "micro_batches": 3}
    alone, beside = (predict(bundle, **layout, overlap_parameters=flag) for flag in (False, True))
    assert us(alone.components.dp_all_gather_s) == 30
    # It is no part of the update any more: the first bucket comes before the pass, which loses a share of the others.
    assert beside.components.dp_all_gather_s == 0
    gathered = [row for row in beside.operators if row.component is Component.ALL_GATHER]
    assert sum(row.count for row in gathered) == 4
    assert us(beside.step_time_s - alone.step_time_s) == pytest.approx(30 + 0.25 * 90 - 30)


def test_the_bucket_of_megatron(make_bundle: Make) -> None:
    # 40 million parameters, or a million per replica: one bucket of this model, which hides nothing.
    bundle = make_bundle({"all_reduce": 30.0})
    alone, beside = (predict(bundle, zero=0, overlap_gradients=flag) for flag in (False, True))
    assert alone.step_time_s == beside.step_time_s


def test_later_stages_wait_for_what_slows_earlier_ones(make_bundle: Make) -> None:
    # Every stage's first forward pass is 30 µs late, and the second begins after the first.
    bundle = make_bundle({"all_gather": 30.0, "point_to_point": 0.001})
    layout = {"pp": 2, "layer_counts": (2, 2), "zero": 1, "micro_batches": 2}
    alone, beside = (predict(bundle, **layout, overlap_parameters=flag) for flag in (False, True))
    # The gather of the last update, of one stage or the other, is gone; both first buckets come before the first loss.
    assert us(beside.step_time_s - alone.step_time_s) == pytest.approx(2 * 30 - 30)


def test_sums_of_input_gradients_beside_weight_gradients(make_bundle: Make) -> None:
    times = PRODUCTS | {"all_reduce": 5.0}
    bundle = make_bundle(times)
    layout = {"tp": 2, "dp": 1, "exposed_share": 0.2}
    alone, beside = (
        predict(bundle, **layout, tensor_overlap=overlap) for overlap in ("none", "weight_gradients")
    )
    # Two in each of 4 layers and the logits' overlap with 7 µs: within a layer half of them is exposed.
    assert us(alone.stages[0].backward_s - beside.stages[0].backward_s) == pytest.approx(9 * (5 - 2.5))
    assert alone.stages[0].forward_s == beside.stages[0].forward_s
    # An all-reduce of 20 µs outlasts the product: max(20 - 7, 0.2 · 20).
    slow = make_bundle(times | {"all_reduce": 20.0})
    alone, beside = (
        predict(slow, **layout, tensor_overlap=overlap) for overlap in ("none", "weight_gradients")
    )
    assert us(alone.stages[0].backward_s - beside.stages[0].backward_s) == pytest.approx(9 * 7)
    # Without sequence parallelism no product is cut.
    products = predict(slow, **layout, tensor_overlap="products")
    assert products.step_time_s == beside.step_time_s


def test_zero_bubble_has_nothing_beside_sums_of_input_gradients(make_bundle: Make) -> None:
    bundle = make_bundle(PRODUCTS | {"all_reduce": 5.0})
    layout = {"tp": 2, "dp": 1, "pp": 2, "micro_batches": 2, "schedule": "zero_bubble"}
    alone, beside = (
        predict(bundle, **layout, tensor_overlap=overlap) for overlap in ("none", "weight_gradients")
    )
    assert beside.step_time_s == pytest.approx(alone.step_time_s)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("parallel_residual", [False, True])
@pytest.mark.parametrize("network_us", [4.0, 9.0])
def test_products_in_pieces(
    make_bundle: Make, recompute: str, parallel_residual: bool, network_us: float
) -> None:
    bundle = make_bundle(PRODUCTS | {"all_gather": network_us, "reduce_scatter": network_us})
    model = {"parallel_residual": parallel_residual}
    layout = {"tp": 2, "dp": 1, "sequence_parallel": True, "exposed_share": 0, "recompute": recompute}
    [alone], [summed], [cut] = (
        predict(bundle, model=model, **layout, tensor_overlap=overlap).stages
        for overlap in ("none", "weight_gradients", "products")
    )

    def hidden(product_us: float) -> float:
        return min(network_us, product_us)

    # Of two pieces the first overlaps with nothing: half of a product of 10 hides 5, of two that share an input 10.
    rounds = 4 * (hidden(10) + hidden(5) if parallel_residual else 4 * hidden(5))
    assert us(alone.forward_s - summed.forward_s) == 0
    assert us(summed.forward_s - cut.forward_s) == pytest.approx(rounds)
    # Backward: sums overlap with weight gradients of 7, gathers of the output's gradient with half of 12.
    assert us(alone.backward_s - summed.backward_s) == pytest.approx(9 * hidden(7))
    gathers = 4 * (1 if parallel_residual else 2) * hidden(6)
    again = rounds if recompute == "full" else 0
    assert us(summed.backward_s - cut.backward_s) == pytest.approx(gathers + again)


def test_all_exposed_is_one_after_the_other(make_bundle: Make) -> None:
    bundle = make_bundle(PRODUCTS | {"all_gather": 4.0, "reduce_scatter": 3.0})
    layout = {"tp": 2, "dp": 1, "sequence_parallel": True, "exposed_share": 1, "recompute": "full"}
    steps = [
        predict(bundle, **layout, tensor_overlap=overlap).step_time_s
        for overlap in ("none", "weight_gradients", "products")
    ]
    assert steps == pytest.approx([steps[0]] * 3)
