"""The statistics of repetitions."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime.errors import UsageError
from kernelcast.store import middle_five_mean_us, percentile, quiet_us, spread
from kernelcast.store.statistics import inner_mean_us, weighted_quantile

DURATIONS = st.lists(st.floats(0.001, 1e9), min_size=1, max_size=60)


def test_middle_five_of_ten_drops_two_fastest_and_three_slowest() -> None:
    assert middle_five_mean_us([90, 1, 2, 30, 40, 50, 60, 70, 80, 100]) == 50


def test_middle_five_looks_at_the_first_ten_only() -> None:
    assert middle_five_mean_us([5.0] * 10 + [1000.0] * 10) == 5


@pytest.mark.parametrize(
    ("durations", "expected"),
    [([3.0], 3), ([1, 2, 3, 4], 2.5), ([1, 2, 3, 4, 100], 22), ([0, 1, 2, 3, 4, 5, 100], 3)],
)
def test_fewer_than_ten(durations: list[float], expected: float) -> None:
    assert middle_five_mean_us(durations) == expected


def test_quiet_lies_between_neighbours() -> None:
    assert quiet_us([float(value) for value in range(11)]) == 1
    assert quiet_us([1.0, 2.0]) == pytest.approx(1.1)
    assert quiet_us([4.0]) == 4


@given(DURATIONS, st.floats(0, 1))
def test_percentile_is_numpys(durations: list[float], fraction: float) -> None:
    assert percentile(durations, fraction) == pytest.approx(np.quantile(durations, fraction), rel=1e-9)


@given(DURATIONS)
def test_statistics_lie_within_the_durations_whatever_their_order(durations: list[float]) -> None:
    low, high = min(durations), max(durations)
    for statistic in (middle_five_mean_us, inner_mean_us, quiet_us):
        assert low * (1 - 1e-12) <= statistic(durations) <= high * (1 + 1e-12)
    assert quiet_us(durations) == quiet_us(durations[::-1])
    assert spread(durations) >= 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), max_size=9), st.integers(0, 20))
def test_a_weight_counts_a_value_as_often(weighted: list[tuple[float, int]], twentieths: int) -> None:
    ordered = sorted(value for value, weight in weighted for _ in range(weight))
    rank = max(1, math.ceil(twentieths * len(ordered) / 20))
    expected = ordered[rank - 1] if ordered else 1.0
    assert weighted_quantile(weighted, twentieths / 20) == expected


def test_without_weight_a_quantile_is_1() -> None:
    assert weighted_quantile([(3.0, 0.0)], 0.5) == 1.0


def test_inner_mean_leaves_out_a_tenth_at_both_ends() -> None:
    assert inner_mean_us([1, 1, 1, 1, 1, 1, 1, 1, 9, 4000]) == pytest.approx(2)
    assert inner_mean_us([1, 2, 6]) == pytest.approx(3)


def test_spread_of_equal_durations_is_none_at_all() -> None:
    assert spread([3.0] * 10) == 0
    assert spread([0.0] * 10) == 0


@pytest.mark.parametrize("statistic", [middle_five_mean_us, inner_mean_us, quiet_us, spread])
def test_no_repetition_is_refused(statistic: Callable[[list[float]], float]) -> None:
    with pytest.raises(UsageError, match="at least one duration"):
        statistic([])


def test_a_fraction_is_no_percentage() -> None:
    with pytest.raises(UsageError, match="0 to 1"):
        percentile([1.0], 10)
