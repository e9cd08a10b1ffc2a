"""The grade of doubt, and the distribution that a predicted time has."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import Estimator, Parallelism, load_model
from kernelcast.runtime.answers.uncertainty import never_compared
from kernelcast.runtime.answers.warnings import Cause
from kernelcast.runtime.estimate.doubts import Doubt, grade_of
from kernelcast.runtime.estimate.predicted_range import PredictedRange, chances_of_least

widths = st.floats(0, 2)
ranges = st.builds(
    lambda median, low, high: PredictedRange(
        median=median, interval=(median / (1 + low), median * (1 + high))
    ),
    st.floats(0.1, 10),
    widths,
    widths,
)


@pytest.mark.parametrize(
    ("interval_s", "grade", "reason"),
    [
        ((0.9, 1.2), "good", "in 9 of 10 cases 10 % shorter to 20 % longer"),
        ((0.9, 1.3), "rough", "in 9 of 10 cases 10 % shorter to 30 % longer"),
        ((1.0, 1.61), "guess", "in 9 of 10 cases 0 % longer to 61 % longer"),
    ],
)
def test_by_the_width_of_the_interval(interval_s: tuple[float, float], grade: str, reason: str) -> None:
    found = grade_of(1.0, interval_s, ())
    assert found.to_dict() == {"grade": grade, "reason": reason}


@pytest.mark.parametrize(
    ("share", "reason"),
    [
        (None, "an operator is left out of the sum"),
        (0.25, "25 % of the step is left out of the sum"),
        (0.1, "10 % of the step is left out of the sum"),
        (0.09, "in 9 of 10 cases 10 % shorter to 30 % longer"),
    ],
)
def test_a_cause_of_doubt_about_a_tenth_of_the_step_is_its_reason(share: float | None, reason: str) -> None:
    doubt = Doubt(cause=Cause.LEFT_OUT, summary="gelu", share=share, has_influence=True, warnings=())
    assert grade_of(1.0, (0.9, 1.3), [doubt]).reason.rpartition("; ")[2] == reason
    assert "left out" not in grade_of(1.0, (0.9, 1.2), [doubt]).reason


def test_a_step_like_no_compared_one_is_not_good() -> None:
    found = grade_of(1.0, (0.9, 1.1), (), "no step of DPO was compared")
    assert (found.grade, found.reason.rpartition("; ")[2]) == ("rough", "no step of DPO was compared")


@pytest.mark.parametrize(
    ("hardware", "fields", "reason"),
    [
        ("h100-nvl", {}, ""),
        ("gh200-144gb", {"lora_rank": 8}, ""),
        ("h100-sxm", {"objective": "dpo"}, "no step of DPO was compared"),
        ("h100-sxm", {"lora_rank": 8, "frozen_weights": "nf4"}, "no step with weights in 4 bit was compared"),
        ("v100-sxm2-32gb", {}, "no step on NVIDIA V100 SXM2 32 GB was compared"),
    ],
)
def test_what_was_never_compared(hardware: str, fields: dict[str, Any], reason: str) -> None:
    layout = Parallelism(pp=1, tp=1, dp=8, micro_batch=1, micro_batches=4, **fields)
    estimate = Estimator.load(f"hardware:{hardware}").predict(
        model=load_model("llama-3-8b"), parallelism=layout
    )
    assert estimate.grade is not None
    found = estimate.grade.reason.rpartition("; ")[2]
    assert found == reason if reason else "compared" not in found
    assert not reason or estimate.grade.grade != "good"


@pytest.mark.parametrize("length", [8192, 65_536])
def test_no_interval_knows_recurrent_layers(length: int) -> None:
    model = load_model("nemotron-3-nano").with_sequence_length(length)
    layout = Parallelism(pp=1, tp=1, dp=8, micro_batch=1, micro_batches=1)
    assert never_compared(model, layout, "NVIDIA H100 SXM5 80 GB") == (
        "no step with recurrent layers was compared"
    )
    dense = load_model("llama-3-8b")
    assert (
        never_compared(dense, layout, "NVIDIA L40 80GB NVL") == "no step on NVIDIA L40 80GB NVL was compared"
    )


def test_an_estimate_says_why_it_is_no_good() -> None:
    estimate = Estimator.load("hardware:mi300x").predict(
        model=load_model("llama-3-8b"),
        parallelism=Parallelism(pp=1, tp=1, dp=8, micro_batch=1, micro_batches=4),
    )
    assert estimate.grade is not None
    assert estimate.grade.grade != "good"
    assert " of the step is " in estimate.grade.reason
    assert estimate.to_dict()["grade"] == estimate.grade.to_dict()


@given(ranges, st.floats(0.02, 0.98))
def test_quantiles_and_shares_are_inverse(one: PredictedRange, share: float) -> None:
    low, high = one.interval
    assert one.quantile(0.05) == pytest.approx(low)
    assert one.quantile(0.5) == pytest.approx(one.median)
    assert one.quantile(0.95) == pytest.approx(high)
    if min(one.median / low, high / one.median) > 1.001:
        assert one.share_below(one.quantile(share)) == pytest.approx(share)


@given(st.lists(ranges, min_size=1, max_size=4))
def test_chances_are_one_together_and_the_certain_winner_has_all(some: list[PredictedRange]) -> None:
    chances = chances_of_least(some)
    assert sum(chances) == pytest.approx(1)
    least = min(one.interval[0] for one in some)
    winner = PredictedRange(median=least / 100, interval=(least / 110, least / 90))
    assert chances_of_least([winner, *some])[0] == pytest.approx(1, abs=0.02)


def test_two_alike_have_the_same_chance() -> None:
    one, other = (PredictedRange(median=1.0, interval=(0.8, 1.5)) for _ in range(2))
    assert chances_of_least([one, other]) == pytest.approx((0.5, 0.5))
