"""Intervals: calibrated where rows allow it, by groups where that pays, and never promised where they do not."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.runtime.bundle.regressor_entry import LEVEL, Interval
from kernelcast.runtime.operators import Direction
from kernelcast.train.dataset import Array, Table
from kernelcast.train.export import PARITY_TOLERANCE, check_parity, to_onnx
from kernelcast.train.intervals import FEWEST_CALIBRATED, calibrate, log_half_widths
from kernelcast.train.regressor import all_candidates, fit

CANDIDATES = all_candidates().every

FORWARD, ONCE = Direction.FORWARD, Direction.ONCE


def table(workloads: Array, times_us: Array, operator: str = "gelu", direction: Direction = FORWARD) -> Table:
    return Table(operator=operator, direction=direction, workloads=workloads, times_us=times_us)


def sizes(count: int) -> Array:
    return np.column_stack([np.ones(count), np.ones(count), np.arange(1, count + 1)]).astype(float)


def noisy(deviations: Array, seed: int = 0) -> Array:
    """Times around 100 µs, [rows], whose logarithms deviate so much."""
    normal = np.random.default_rng(seed).standard_normal(len(deviations))
    return np.asarray(100 * np.exp(deviations * normal), dtype=np.float64)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(100, 600), deviation=st.floats(0.001, 1))
def test_the_reported_coverage_is_what_is_promised(seed: int, count: int, deviation: float) -> None:
    # Widths come from the very rows that count, so this share varies less than one of new rows: over 1,500 seeds for
    # 100 rows it is 0.901 ± 0.010, from 0.86 to 0.92, and less with more rows. The bounds are about 5 deviations away.
    measured = table(sizes(count), noisy(np.full(count, deviation), seed))
    calibrated = calibrate(measured, np.full(count, 100.0), 7)
    assert calibrated.coverage is not None
    assert 0.85 <= calibrated.coverage <= 0.95


@pytest.mark.parametrize("count", [25, 100, 400])
def test_rows_never_seen_are_covered_as_promised(count: int) -> None:
    """One calibration may cover more or less than 90 % of new rows; on average over many it is at least that."""
    shares = []
    for seed in range(100):
        measured = table(sizes(count), noisy(np.full(count, 0.3), seed))
        interval = calibrate(measured, np.full(count, 100.0), 7).interval
        off = np.abs(np.log(noisy(np.full(count, 0.3), seed + 1000) / 100))
        shares.append(np.mean(off <= log_half_widths(interval, measured.workloads)))
    # ⌈0.9 (n + 1)⌉ of n + 1 rows in expectation: 24 of 26 with the fewest.
    assert LEVEL - 0.015 <= np.mean(shares) <= 24 / 26 + 0.015


def test_the_coverage_is_honest() -> None:
    """The quantile of all rows covers 90 % of them by construction; that is not what is reported."""
    count = 25
    times_us = 100 * np.exp(np.arange(count) / 100)
    calibrated = calibrate(table(sizes(count), times_us), np.full(count, 100.0), 3)
    # ⌈26 · 0.9⌉ = 24th of 25 errors: 24 rows lie within it. With the quantile of 20 rows, the 19th, fewer do.
    assert calibrated.interval.log_half_widths == pytest.approx([0.23])
    assert calibrated.coverage is not None
    assert calibrated.coverage < 24 / 25


@pytest.mark.parametrize("count", [8, FEWEST_CALIBRATED - 1])
def test_few_rows_promise_nothing(count: int) -> None:
    times_us = np.full(count, 100.0)
    times_us[3] = 120.0
    calibrated = calibrate(table(sizes(count), times_us), np.full(count, 100.0), 7)
    assert calibrated.coverage is None
    assert calibrated.interval == Interval.of_all(1.5 * math.log(1.2), method="largest_error")


def test_noise_of_small_sizes_does_not_widen_the_large_ones() -> None:
    count = 600
    deviations = np.where(np.arange(count) < count / 3, 0.5, 0.01)
    calibrated = calibrate(table(sizes(count), noisy(deviations)), np.full(count, 100.0), 7)
    interval = calibrated.interval
    assert interval.by == "size"
    assert interval.size_bounds == (200.0, 400.0)
    assert interval.log_half_widths == pytest.approx([0.5 * 1.645, 0.01645, 0.01645], rel=0.25)
    assert calibrated.coverage == pytest.approx(LEVEL, abs=0.02)
    widths = log_half_widths(
        interval, np.array([[1, 1, 200], [1, 1, 201], [1, 20, 20], [1, 20, 21]], dtype=float)
    )
    assert widths == pytest.approx([interval.log_half_widths[group] for group in (0, 1, 1, 2)])


def test_equal_noise_has_one_width() -> None:
    count = 600
    calibrated = calibrate(table(sizes(count), noisy(np.full(count, 0.1))), np.full(count, 100.0), 7)
    assert calibrated.interval.by == "all"


def layouts(rows: dict[tuple[int, int], int]) -> Array:
    return np.array(
        [[1000 + i, nodes, gpus] for (nodes, gpus), count in rows.items() for i in range(count)], dtype=float
    )


def test_a_noisy_layout_does_not_widen_the_others() -> None:
    rows = {(1, 2): 100, (1, 4): 100, (2, 4): 8}
    workloads = layouts(rows)
    deviations = np.where((workloads[:, 1] == 1) & (workloads[:, 2] == 4), 1.0, 0.02)
    measured = table(workloads, noisy(deviations), "all_gather", ONCE)
    interval = calibrate(measured, np.full(len(workloads), 100.0), 7).interval
    assert (interval.by, interval.layouts) == ("layout", ((1, 2), (1, 4)))
    narrow, wide, other = interval.log_half_widths
    assert narrow == pytest.approx(0.0329, rel=0.3)
    assert wide == pytest.approx(1.645, rel=0.3)
    # Too few rows for a quantile, or never measured: as wide as the widest.
    assert other == wide
    asked = np.array([[5, 1, 2], [5, 1, 4], [5, 2, 4], [5, 7, 7]], dtype=float)
    assert log_half_widths(interval, asked) == pytest.approx([narrow, wide, wide, wide])
    assert measured.layouts == ((1, 2), (1, 4), (2, 4))


def test_only_collectives_have_layouts() -> None:
    assert table(sizes(3), np.ones(3)).layouts == ()


def test_predictions_that_are_no_number_count_as_far_off() -> None:
    held_out_us = np.full(40, 100.0)
    held_out_us[:20] = [np.inf, np.nan, 0.0, 100.0] * 5
    calibrated = calibrate(table(sizes(40), np.full(40, 100.0)), held_out_us, 7)
    assert calibrated.interval.log_half_widths == pytest.approx([math.log(1e6)])


def test_exact_predictions_have_an_interval_of_nothing() -> None:
    calibrated = calibrate(table(sizes(40), np.full(40, 100.0)), np.full(40, 100.0), 7)
    assert calibrated.interval.log_half_widths == (0.0,)
    assert calibrated.coverage == 1.0


GROUPED = [
    Interval.of_all(0.0),
    Interval(
        method="cross_conformal",
        level=LEVEL,
        by="size",
        size_bounds=(512.0, 131072.0, 16777216.0),
        layouts=(),
        log_half_widths=(0.7, 0.01, 0.2, 1.5),
    ),
    Interval(
        method="cross_conformal",
        level=LEVEL,
        by="layout",
        size_bounds=(),
        layouts=((1, 2), (2, 4), (4, 4)),
        log_half_widths=(0.1, 2.0, 0.3, 0.05),
    ),
]


@pytest.mark.parametrize("interval", GROUPED, ids=lambda interval: interval.by)
@pytest.mark.parametrize("candidate", CANDIDATES[::3], ids=lambda candidate: candidate.form)
def test_the_graph_answers_what_python_does(
    make_table: Callable[..., Table], interval: Interval, candidate: object
) -> None:
    measured = make_table("all_reduce", ONCE, 40, noise=0.2)
    regressor = fit(candidate, measured, 3)  # type: ignore[arg-type]
    model = to_onnx(regressor, interval, {})
    assert check_parity(model, regressor, interval, measured, 3) <= PARITY_TOLERANCE
    # The interval of every group is among the compared ones.
    assert len(np.unique(log_half_widths(interval, measured.workloads))) == len(interval.log_half_widths)


@pytest.mark.parametrize(("used", "said"), [(0, 1), (1, 0), (1, 2), (2, 1)])
def test_another_interval_than_the_one_said_is_refused(
    make_table: Callable[..., Table], used: int, said: int
) -> None:
    from kernelcast.runtime import DataError

    measured = make_table("all_reduce", ONCE, 40, noise=0.2)
    regressor = fit(CANDIDATES[0], measured, 3)
    model = to_onnx(regressor, GROUPED[used], {})
    with pytest.raises(
        DataError, match=r"^all_reduce \(once\): ONNX answers low_us that differs from Python's"
    ):
        check_parity(model, regressor, GROUPED[said], measured, 3)
