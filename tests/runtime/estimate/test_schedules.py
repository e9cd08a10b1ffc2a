"""Estimates of every schedule and of sharded states, added up by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import (
    Cluster,
    Estimator,
    ModelConfig,
    Parallelism,
    UsageError,
)
from kernelcast.runtime.operators import Direction

Make = Callable[..., Path]
TINY: dict[str, Any] = {
    "name": "tiny",
    "hidden_size": 8,
    "sequence_length": 4,
    "attention_heads": 2,
    "layers": 4,
    "vocabulary_size": 100,
}
LAYOUT = {"pp": 1, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 1}
ONE: dict[str, Any] = LAYOUT | {"layer_split": "paper"}
OPTIMIZER = {"adam": 100.0}


def us(seconds: float) -> float:
    return round(seconds * 1e6, 6)


def test_a_simulated_pipeline_by_hand(make_bundle: Make) -> None:
    estimate = Estimator.load(make_bundle(OPTIMIZER)).predict(
        model=ModelConfig(**TINY),
        parallelism=Parallelism(**ONE | {"pp": 2, "micro_batches": 3}),
        cluster=Cluster(gpus_per_node=2),
    )
    # Forward 340 and 140, backward 680 and 280, 5 for a transfer. The first stage computes two forward
    # passes until 680 and waits for the first backward pass of the second: 340 + 5 + 420 + 5 = 770. From then
    # on it never waits: 770 + 3 · 680 + 340 = 3,150; then the optimizer.
    assert us(estimate.step_time_s) == 3250
    # Of 3,150 the stages compute 3 · 1,020 and 3 · 420.
    assert estimate.bubble_share == pytest.approx(1 - (3060 + 1260) / 2 / 3150)
    assert estimate.timeline == "simulate"


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"pp": 1025}, "pp · virtual_stages is 1025, expected at most 1024 with timeline simulate"),
        (
            {"pp": 1000, "micro_batches": 1001},
            "micro_batches · pp · virtual_stages is 1001000, expected at most 1000000 with timeline simulate",
        ),
    ],
)
def test_simulations_that_take_too_long(make_bundle: Make, layout: dict[str, Any], message: str) -> None:
    estimator = Estimator.load(make_bundle())
    model, parallelism = ModelConfig(**TINY | {"layers": 2000}), Parallelism(**ONE | layout)
    with pytest.raises(UsageError) as caught:
        estimator.predict(model=model, parallelism=parallelism)
    assert str(caught.value) == message
    assert estimator.predict(model=model, parallelism=parallelism, timeline="closed-form").step_time_s > 0


def test_updates_beside_which_passes_vanish(make_bundle: Make) -> None:
    estimate = Estimator.load(make_bundle({"all_reduce": 1e12})).predict(
        model=ModelConfig(**TINY), parallelism=Parallelism(**ONE | {"dp": 2}), bucket_entries=1
    )
    assert estimate.step_time_s > 1e6
    assert estimate.bubble_share == pytest.approx(0, abs=1e-6)


def test_virtual_stages_and_split_backward_by_hand(make_bundle: Make) -> None:
    model = ModelConfig(**TINY | {"layers": 7})
    estimator = Estimator.load(make_bundle())

    def times(**change: Any) -> tuple[list[float], list[float], list[float]]:
        durations = estimator.predict(model=model, parallelism=Parallelism(**ONE | change)).durations
        rows = durations.forward_us, durations.backward_us, durations.weight_us
        return tuple([round(value, 6) for value in row[0].tolist()] for row in rows)  # type: ignore[return-value]

    # 12 blocks on 4 chunks are 1, 3, 3 and 0 layers; the ends take 10 and 20, 30 and 60.
    chunks = {"pp": 2, "micro_batches": 2, "schedule": "interleaved", "virtual_stages": 2}
    assert times(**chunks) == ([120, 330, 330, 30], [240, 660, 660, 60], [0, 0, 0, 0])
    # 10 of the backward pass of 4 linears per layer, and of the logits', are gradients of weights; 4 and 3 layers.
    assert times(pp=2, schedule="zero_bubble") == ([450, 360], [900 - 160, 720 - 130], [160, 130])


ZERO_BUBBLE: dict[str, Any] = ONE | {"pp": 2, "micro_batches": 4, "schedule": "zero_bubble"}
GRADIENTS = {("gemm", Direction.INPUT_GRADIENT): 12.0, ("gemm", Direction.WEIGHT_GRADIENT): 7.0}


def test_zero_bubble_takes_the_measured_gradients_apart(make_bundle: Make) -> None:
    estimate = Estimator.load(make_bundle(GRADIENTS)).predict(
        model=ModelConfig(**TINY), parallelism=Parallelism(**ZERO_BUBBLE)
    )
    # A layer's 7 other operators take 20 backward, its 4 linears 12 and 7; 3 layers and 1, logits on the second stage.
    durations = estimate.durations
    assert durations.weight_us.round(6).tolist() == [[3 * 28, 28 + 7]]
    assert durations.backward_us.round(6).tolist() == [[20 + 3 * (140 + 48), 140 + 48 + 40 + 12]]
    assert [us(stage.backward_s) for stage in estimate.stages] == [20 + 3 * 216, 216 + 40 + 19 + 5]
    assert estimate.warnings == ()
    # The other schedules take both parts in one pass.
    whole = Estimator.load(make_bundle(GRADIENTS)).predict(
        model=ModelConfig(**TINY), parallelism=Parallelism(**ZERO_BUBBLE | {"schedule": "1f1b"})
    )
    assert whole.durations.weight_us.tolist() == [[0, 0]]
    assert whole.durations.backward_us.round(6).tolist() == [[20 + 3 * 216, 216 + 40 + 19]]


def test_zero_bubble_takes_halves_where_only_the_sum_was_measured(make_bundle: Make) -> None:
    path = make_bundle({("gemm", Direction.BACKWARD): 26.0}, without=list(GRADIENTS))
    estimator, model = Estimator.load(path), ModelConfig(**TINY)
    split = estimator.predict(model=model, parallelism=Parallelism(**ZERO_BUBBLE))
    assert split.durations.weight_us.round(6).tolist() == [[3 * 4 * 13, 4 * 13 + 13]]
    assert split.durations.backward_us.round(6).tolist() == [[20 + 3 * (140 + 52), 140 + 52 + 40 + 13]]
    assert [str(warning) for warning in split.warnings] == [
        f"gemm ({part}_gradient): not in the bundle, answered by half of gemm (backward)"
        for part in ("input", "weight")
    ]
    assert split.warnings[0].to_dict() == {
        "cause": "substituted",
        "operator": "gemm",
        "direction": "input_gradient",
        "kind": "substitute",
        "source": "gemm",
        "factor": 0.5,
        "message": str(split.warnings[0]),
    }
    # Elsewhere the halves add up to the sum that was measured: nothing to warn of.
    for schedule in ("1f1b", "gpipe"):
        whole = estimator.predict(
            model=model, parallelism=Parallelism(**ZERO_BUBBLE | {"schedule": schedule})
        )
        assert whole.durations.backward_us.round(6).tolist() == [[20 + 3 * (140 + 104), 140 + 104 + 40 + 26]]
        assert whole.warnings == ()


def test_one_measured_gradient_is_used_and_the_other_is_half_of_the_sum(make_bundle: Make) -> None:
    times = GRADIENTS | {("gemm", Direction.BACKWARD): 26.0}
    path = make_bundle(times, without=[("gemm", Direction.INPUT_GRADIENT)])
    estimate = Estimator.load(path).predict(model=ModelConfig(**TINY), parallelism=Parallelism(**ZERO_BUBBLE))
    assert estimate.durations.weight_us.round(6).tolist() == [[3 * 4 * 7, 4 * 7 + 7]]
    assert estimate.durations.backward_us.round(6).tolist() == [[20 + 3 * (140 + 52), 140 + 52 + 40 + 13]]
    assert len(estimate.warnings) == 1


def test_zero_3_beside_computing_by_hand(make_bundle: Make) -> None:
    times = {"all_gather": 150.0, "reduce_scatter": 100.0}
    estimate = Estimator.load(make_bundle(times)).predict(
        model=ModelConfig(**TINY), parallelism=Parallelism(**ONE | {"dp": 2, "zero": 3, "exposed_share": 0})
    )
    (stage,) = estimate.stages
    # Forward 10, 4 · 110, 30; a gather takes 150: the first alone, then overlapped with embedding and 4 layers.
    assert us(stage.forward_s) == 150 + 150 + 4 * 150 + 30
    # Backward 60, 4 · 220, 20, overlapped with 150; 150 + 100 four times; 100; then the last scatter alone.
    assert us(stage.backward_s) == 150 + 150 + 4 * 250 + 100 + 100
    assert stage.all_reduce_s == stage.all_gather_s == 0


def test_the_exposed_share_of_collectives_by_hand(make_bundle: Make) -> None:
    model, layout = ModelConfig(**TINY), ONE | {"dp": 2, "zero": 3}
    estimator = Estimator.load(make_bundle({"all_gather": 60.0, "reduce_scatter": 40.0}))
    # Forward 10, 4 · 110, 30, backward 60, 4 · 220, 20; overlapped gathers of 60, backward scatters of 40 too.
    for share in (0.0, 0.25, 1.0):
        (stage,) = estimator.predict(
            model=model, parallelism=Parallelism(**layout, exposed_share=share)
        ).stages
        assert us(stage.forward_s) == 60 + max(60, 10 + 60 * share) + 4 * 110 + 4 * 60 * share + 30
        backward = 60 + (60 + 60 * share) + 4 * (220 + 100 * share)
        assert us(stage.backward_s) == backward + max(20 + 40 * share, 40) + 40
    usual = estimator.predict(model=model, parallelism=Parallelism(**layout))
    quarter = estimator.predict(model=model, parallelism=Parallelism(**layout, exposed_share=0.25))
    assert usual.step_time_s == quarter.step_time_s


@pytest.mark.parametrize("gather_us", [8.0, 30.0])
def test_inputs_gathered_again_beside_their_gradients_product_by_hand(
    make_bundle: Make, gather_us: float
) -> None:
    estimator = Estimator.load(make_bundle(GRADIENTS | {"all_gather": gather_us}))

    def backward_us(**layout: Any) -> float:
        asked = Parallelism(**ONE | {"tp": 2, "sequence_parallel": True} | layout)
        (stage,) = estimator.predict(model=ModelConfig(**TINY), parallelism=asked).stages
        return us(stage.backward_s)

    # Two in each of 4 layers, and the logits': overlapped with a product of 12.
    hidden = 9 * min(gather_us, 12)
    exposed, half, none = (backward_us(exposed_share=share) for share in (1, 0.5, 0))
    assert exposed - none == pytest.approx(hidden)
    assert half - none == pytest.approx(9 * (max(12 + gather_us / 2, gather_us) - max(12, gather_us)))
    # All other gathers of a backward pass, two in a layer and the embedding's, are not hidden.
    faster = Estimator.load(make_bundle(GRADIENTS | {"all_gather": 1.0}))
    (stage,) = faster.predict(
        model=ModelConfig(**TINY),
        parallelism=Parallelism(**ONE | {"tp": 2, "sequence_parallel": True, "exposed_share": 1}),
    ).stages
    assert exposed - us(stage.backward_s) == pytest.approx((9 + 9) * (gather_us - 1))
    # Without sequence parallelism nothing is gathered.
    assert backward_us(sequence_parallel=False) == backward_us(sequence_parallel=False, exposed_share=1)


def test_zero_2_beside_computing_by_hand(make_bundle: Make) -> None:
    def passes(**times: float) -> tuple[float, float, float, float]:
        layout = Parallelism(**ONE | {"dp": 2, "zero": 2, "micro_batches": 3, "exposed_share": 0})
        estimate = Estimator.load(make_bundle(times)).predict(model=ModelConfig(**TINY), parallelism=layout)
        (stage,) = estimate.stages
        update_s = us(stage.optimizer_s) + us(stage.all_gather_s)
        assert us(estimate.step_time_s) == 3 * (us(stage.forward_s) + us(stage.backward_s)) + update_s
        return us(stage.forward_s), us(stage.backward_s), us(stage.all_reduce_s), us(stage.all_gather_s)

    # Nothing is fetched. Backward 60, 4 · 220, 20: a scatter of 100 outlasts the 20, and the last one stands alone.
    assert passes(reduce_scatter=100.0, all_gather=7.0) == (
        10 + 4 * 110 + 30,
        60 + 4 * 220 + 100 + 100,
        0,
        7,
    )
    # A scatter of 250 outlasts every layer, and the first end.
    assert passes(reduce_scatter=250.0, all_gather=7.0)[1] == 60 + 4 * 250 + 250 + 250
