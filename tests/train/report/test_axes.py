"""Ticks: round, few, inside the axis; marks that stay few."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.train.report.axes import error_tick, log_ticks, marks, ratio_ticks


@given(st.floats(1e-3, 1e15), st.floats(1.01, 1e12), st.integers(3, 6))
def test_ticks_are_few_rising_and_inside(low: float, ratio: float, most: int) -> None:
    high = low * ratio
    ticks = log_ticks(low, high, most=most)
    assert 1 <= len(ticks) <= most
    assert ticks == sorted(set(ticks))
    assert all(low * (1 - 1e-6) <= tick <= high * (1 + 1e-6) for tick in ticks)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (8, 12_000, [10, 100, 1000, 10_000]),
        (8, 400, [10, 30, 100, 300]),
        (90, 600, [100, 200, 500]),
        (1000, 1012, [1000, 1005, 1010]),
        (1, 1e12, [1, 1e3, 1e6, 1e9, 1e12]),
    ],
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert log_ticks(low, high) == pytest.approx(ticks)


@given(st.floats(1.0011, 1e5))
def test_errors_have_ticks_on_both_sides_of_none(largest: float) -> None:
    ticks = ratio_ticks(largest)
    middle = len(ticks) // 2
    assert len(ticks) in (3, 5)
    assert ticks[middle] == 1
    assert ticks == sorted(ticks)
    assert ticks[-1] <= largest
    # As far apart on a logarithmic axis below as above, but for what percent make of it.
    for below, above in zip(ticks[:middle], reversed(ticks), strict=False):
        assert math.log(above) == pytest.approx(-math.log(below), rel=0.25)


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.0, "0"),
        (1.05, "+5 %"),
        (0.8, "−20 %"),
        (1 / 1.5, "−33 %"),
        (1.001, "+0.1 %"),
        (2, "× 2"),
        (0.1, "÷ 10"),
    ],
)
def test_errors_on_an_axis(ratio: float, text: str) -> None:
    assert error_tick(ratio) == text


def test_marks_at_one_place_are_drawn_once() -> None:
    assert marks([1, 1.1, 3.26], [2, 2, 4], "#000").count("h0") == 2
    rng = np.random.default_rng(1)
    assert len(marks(*rng.uniform(0, 100, (2, 1_000_000)), "#000")) < 40_001 * len("M100.5 100.5h0")
