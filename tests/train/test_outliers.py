"""Rows far outside the others' spread are named; extrapolation holds out the largest quarter of each feature."""

import numpy as np
import pytest

from kernelcast.runtime.operators import Direction
from kernelcast.train.dataset import Table
from kernelcast.train.notes import outliers
from kernelcast.train.selection import largest_quarters


def gelu(count: int) -> Table:
    workloads = np.column_stack([np.ones(count), np.ones(count), np.arange(count) + 1.0])
    times_us = np.full(count, 100.0)
    return Table(operator="gelu", direction=Direction.FORWARD, workloads=workloads, times_us=times_us)


def test_the_farthest_first() -> None:
    held_out_us = np.full(20, 101.0)
    held_out_us[[3, 7, 11]] = [150, 10, 119]
    assert outliers(gelu(20), held_out_us) == (7, 3)  # 19 % off is no outlier, however close the others are
    held_out_us[5] = np.nan
    assert outliers(gelu(20), held_out_us)[0] == 5


def test_wide_spreads_have_fewer() -> None:
    generator = np.random.default_rng(0)
    held_out_us = 100 * np.exp(0.3 * generator.standard_normal(1000))
    assert len(outliers(gelu(1000), held_out_us)) < 10


def test_a_collectives_layouts_have_spreads_of_their_own() -> None:
    workloads = np.array([[1000.0 + i, 1, gpus] for gpus in (2, 4) for i in range(50)])
    table = Table(
        operator="all_gather", direction=Direction.ONCE, workloads=workloads, times_us=np.full(100, 100.0)
    )
    held_out_us = 100 * np.exp(np.concatenate([np.full(50, 0.01), np.linspace(-2, 2, 50)]))
    held_out_us[10] = 200
    assert outliers(table, held_out_us) == (10,)


def test_quarters() -> None:
    values = np.arange(16.0)
    workloads = np.column_stack(
        [values, values[::-1], values, np.tile([1.0, 2, 3, 4], 4), np.repeat([1.0, 2], 8)]
    )
    first, second, third = largest_quarters(workloads)
    assert first.features == (0, 2)  # they move together
    assert np.flatnonzero(first.rows).tolist() == [12, 13, 14, 15]
    assert np.flatnonzero(second.rows).tolist() == [0, 1, 2, 3]
    assert third.features == (3,)
    assert np.flatnonzero(third.rows).tolist() == [3, 7, 11, 15]


def test_a_largest_value_of_most_rows_is_held_out_alone() -> None:
    values = np.array([1.0, 2, 3, 8, 8, 8, 8, 8])
    [quarter] = largest_quarters(values[:, None])
    assert quarter.rows.tolist() == [False] * 3 + [True] * 5


@pytest.mark.parametrize("values", [[1.0, 2, 3] * 4, [5.0] * 8])
def test_too_few_values_have_no_quarter(values: list[float]) -> None:
    assert largest_quarters(np.array(values)[:, None]) == ()
