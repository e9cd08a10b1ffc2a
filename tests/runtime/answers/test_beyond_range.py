"""Intervals beyond the trained range: untouched inside, wider the farther out, never turned round."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelcast.runtime import Estimator, ModelConfig, Parallelism
from kernelcast.runtime.answers.beyond_range import MOST_TIMES, doublings_beyond, widened
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.operators import Direction

NORM, REDUCE = ("layer_norm", Direction.FORWARD), ("all_reduce", Direction.ONCE)
HALF_TO_TWICE = (8.0, 4.0, 16.0)
Regressor = Callable[..., RegressorEntry]


def entry(regressor: Regressor, error: float = 0.1, beyond: float | None = 0.2) -> RegressorEntry:
    return replace(regressor(NORM, b"model", largest=64), validation_error=error, extrapolation_error=beyond)


def test_inside_nothing_changes(regressor: Regressor) -> None:
    assert widened(entry(regressor), (64, 1, 8), HALF_TO_TWICE) == HALF_TO_TWICE


@pytest.mark.parametrize(
    ("error", "beyond", "largest", "squared"),
    [
        (0.1, 0.2, 128, 2),  # twice the error
        (0.1, 0.2, 512, 6),  # and three doublings
        (0.1, 0.05, 256, 2),  # never less than the interval inside
        (0.0, 0.2, 256, 2),
        (0.1, None, 256, 2),
        (0.1, 0.2, 64 * 2**30, None),
    ],
)
def test_widened_by_hand(
    regressor: Regressor, error: float, beyond: float | None, largest: int, squared: int | None
) -> None:
    factor = MOST_TIMES if squared is None else 2.0**squared
    time_us, low_us, high_us = widened(entry(regressor, error, beyond), (1, largest, 2), HALF_TO_TWICE)
    assert (time_us, low_us, high_us) == (8, pytest.approx(8 / factor), pytest.approx(8 * factor))


def test_below_the_range_too(regressor: Regressor) -> None:
    one = replace(entry(regressor), training_range=((32.0, 64.0),) * 3)
    assert doublings_beyond(one, (32, 8, 16)) == 2
    assert widened(one, (32, 8, 16), HALF_TO_TWICE)[1] == pytest.approx(8 / 2**4)


def test_layouts_never_measured_keep_their_interval(regressor: Regressor) -> None:
    one = replace(regressor(REDUCE, b"model", largest=64), layouts=((1, 2), (2, 4)))
    assert widened(one, (256, 2, 4), HALF_TO_TWICE)[1] == pytest.approx(2)
    assert widened(one, (256, 128, 4), HALF_TO_TWICE) == HALF_TO_TWICE


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # makes nothing anew
@given(
    error=st.floats(0, 10),
    beyond=st.none() | st.floats(0, 10),
    vector=st.tuples(*[st.integers(1, 2**40)] * 3),
    below=st.floats(1, 1e4),
    above=st.floats(1, 1e4),
)
def test_an_interval_stays_one(
    regressor: Regressor,
    error: float,
    beyond: float | None,
    vector: tuple[int, ...],
    below: float,
    above: float,
) -> None:
    answer = 3.0, 3.0 / below, 3.0 * above
    time_us, low_us, high_us = widened(entry(regressor, error, beyond), vector, answer)
    assert (time_us, low_us > 0, low_us <= answer[1]) == (3, True, True)
    assert answer[2] <= high_us < math.inf


def test_an_estimate_is_less_sure_beyond(make_bundle: Callable[..., Path]) -> None:
    estimator = Estimator.load(make_bundle(largest=64))

    def width(sequence_length: int) -> float:
        model = ModelConfig(
            name="tiny", hidden_size=16, sequence_length=sequence_length, attention_heads=2, layers=2,
            vocabulary_size=10,
        )  # fmt: skip
        estimate = estimator.predict(
            model=model, parallelism=Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=1)
        )
        assert estimate.interval_s is not None
        return estimate.interval_s[1] / estimate.interval_s[0]

    assert width(64) < width(1024) < width(1 << 14)
