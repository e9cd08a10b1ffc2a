"""Intervals of a step: what is drawn, and what comes of it."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import Cluster, Estimator, ModelConfig, Parallelism
from kernelcast.runtime.answers.asking import OperatorTimes, Question
from kernelcast.runtime.answers.predictor import Answer
from kernelcast.runtime.answers.uncertainty import drawn_times, draws_for, interval, quantile
from kernelcast.runtime.operators import Direction

Make = Callable[..., Path]
F, B = Direction.FORWARD, Direction.BACKWARD
TINY = ModelConfig(
    name="tiny", hidden_size=8, sequence_length=4, attention_heads=2, layers=4, vocabulary_size=100
)
LAYOUT = Parallelism(pp=2, tp=1, dp=1, micro_batch=1, micro_batches=3)


def times(answers: Mapping[Question, Answer]) -> OperatorTimes:
    return OperatorTimes(answers=dict(answers), sources={one: one[0] for one in answers})


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=60), st.floats(0, 1))
def test_quantiles_are_numpys_to_the_last_bit(values: list[float], level: float) -> None:
    assert quantile(sorted(values), level) == np.quantile(values, level)


def test_percentiles_of_what_is_drawn_are_the_interval() -> None:
    one: Question = (("gelu", F), (1, 2, 3), "")
    [drawn] = drawn_times(times({one: (100.0, 80.0, 150.0)}), [one], 1000)
    assert drawn[0] == 100
    assert np.quantile(drawn[1:], 0.05) == pytest.approx(80, rel=1e-3)
    assert np.quantile(drawn[1:], 0.95) == pytest.approx(150, rel=2e-3)
    # The predicted time is the median, whatever the ends.
    assert np.median(drawn[1:]) == pytest.approx(100, rel=1e-3)
    assert np.quantile(drawn[1:], 0.25) > 80 * (100 / 80) ** 0.4


def test_errors_of_one_regressor_go_together_and_of_two_do_not() -> None:
    answers: dict[Question, Answer] = {
        (("gelu", F), (1, 1, 1), ""): (10.0, 8.0, 12.0),
        (("gelu", F), (9, 9, 9), ""): (100.0, 80.0, 120.0),
        (("gelu", B), (1, 1, 1), ""): (10.0, 8.0, 12.0),
    }
    small, large, other = drawn_times(times(answers), list(answers), 256)
    assert large[1:] == pytest.approx(10 * small[1:])
    assert abs(np.corrcoef(small[1:], other[1:])[0, 1]) < 0.2


def test_parts_of_a_sum_share_the_error_of_the_regressor_that_answers_for_both() -> None:
    both: dict[Question, Answer] = {
        (("gemm", direction), (1, 1, 1), "qkv"): (10.0, 8.0, 12.0)
        for direction in (Direction.INPUT_GRADIENT, Direction.WEIGHT_GRADIENT)
    }
    shared = OperatorTimes(answers=both, sources=dict.fromkeys(both, ("gemm", B)))
    for found, equal in ((shared, True), (times(both), False)):
        of_input, of_weight = drawn_times(found, list(both), 64)
        assert (of_input.tolist() == of_weight.tolist()) is equal


def test_no_questions_and_no_draws() -> None:
    one: Question = (("gelu", F), (1, 2, 3), "")
    assert drawn_times(times({}), [], 5).shape == (0, 6)
    assert drawn_times(times({one: (100.0, 80.0, 150.0)}), [one], 0).tolist() == [[100.0]]


def test_the_same_numbers_whenever_they_are_drawn() -> None:
    one: Question = (("gelu", F), (1, 2, 3), "")
    other: Question = (("rope", F), (1,), "")
    [alone] = drawn_times(times({one: (100.0, 80.0, 150.0)}), [one], 64)
    _, among = drawn_times(times({other: (1.0, 1.0, 1.0), one: (100.0, 80.0, 150.0)}), [other, one], 64)
    assert alone.tolist() == among.tolist()


@given(
    st.floats(1e-3, 1e9), st.lists(st.floats(1e-3, 1e9, allow_nan=False), max_size=50), st.floats(1.0, 3.0)
)
def test_an_interval_holds_its_time(time: float, drawn: list[float], factor: float) -> None:
    low, high = interval(time, drawn)
    assert 0 < low <= time <= high
    assert interval(factor * time, [factor * value for value in drawn]) == pytest.approx(
        (factor * low, factor * high)
    )


def test_fewer_draws_for_long_simulations() -> None:
    assert draws_for("closed-form", 1000) == 256
    assert [draws_for("simulate", chunks) for chunks in (1, 128, 256, 10**6)] == [64, 64, 32, 16]


@pytest.mark.parametrize("timeline", ["simulate", "closed-form"])
def test_steps_scale_with_an_error_that_all_share(make_bundle: Make, timeline: str) -> None:
    estimator = Estimator.load(make_bundle())
    estimate = estimator.predict(
        model=TINY, parallelism=LAYOUT, cluster=Cluster(gpus_per_node=2), timeline=timeline
    )
    assert estimate.interval_s is not None
    low_s, high_s = estimate.interval_s
    spread = {row.high_us / row.low_us for row in estimate.operators}
    # Errors of many regressors cancel in part: the step is surer than every single operator.
    assert 1 < high_s / low_s < min(spread)
    assert (
        estimator.predict(
            model=TINY,
            parallelism=LAYOUT,
            cluster=Cluster(gpus_per_node=2),
            timeline=timeline,
            interval=False,
        ).interval_s
        is None
    )


@pytest.mark.parametrize("timeline", ["simulate", "closed-form"])
def test_the_step_is_the_same_with_and_without_interval(make_bundle: Make, timeline: str) -> None:
    estimator = Estimator.load(make_bundle())
    both = [
        estimator.predict(
            model=TINY,
            parallelism=LAYOUT,
            cluster=Cluster(gpus_per_node=2),
            timeline=timeline,
            interval=with_interval,
        ).step_time_s
        for with_interval in (True, False)
    ]
    assert both[0] == both[1]
