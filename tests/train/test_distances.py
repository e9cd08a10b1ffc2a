"""Intervals outside the measured range: parts are held out, and what they are off by gives the half-width."""

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from kernelcast.runtime.bundle.regressor_entry import PRIOR, Interval
from kernelcast.runtime.operators import Direction
from kernelcast.train.dataset import Array, Table
from kernelcast.train.distances import HeldOutPart, held_out_parts, widening_of
from kernelcast.train.regressor import Candidate, Regressor, fit

FORWARD, ONCE = Direction.FORWARD, Direction.ONCE
POWER_LAW = Candidate(
    algorithm="random_forest", form="power_law", hyperparameters={"n_estimators": 1, "max_depth": 1}
)
NARROW = Interval.of_all(0.01)


def gelus(rows: int = 40) -> Table:
    """Elements from 2^10 on, twice as many every fifth row; times with a knee that a power law does not follow."""
    elements = np.round(2.0 ** (10 + np.arange(rows) / 5))
    return Table(
        operator="gelu",
        direction=FORWARD,
        workloads=np.column_stack([np.ones(rows), np.ones(rows), elements]),
        times_us=10 + elements / 1e3,
    )


def gemms(rows: int = 60, *, special: float = 1.0) -> Table:
    """Two roles of the same sizes in turn; the second takes `special` times as long."""
    k = 256.0 * (1 + np.arange(rows) // 2 % 8)
    m = 256.0 * (1 + np.arange(rows) // 16)
    second = np.arange(rows) % 2 == 1
    workloads = np.column_stack([m, k + second, np.full(rows, 1024.0)])
    times_us = workloads.prod(axis=1) / 1e5 * np.where(second, special, 1.0)
    roles = {"qkv": np.where(second, np.nan, times_us), "mlp_up": np.where(second, times_us, np.nan)}
    return Table(
        operator="gemm", direction=FORWARD, workloads=workloads, times_us=times_us, role_times_us=roles
    )


def reduces() -> Table:
    rows = [
        (entries, nodes, gpus, 10 + entries * nodes / 1e3)
        for nodes, gpus in ((1, 2), (1, 4), (2, 1), (4, 1))
        for entries in 2.0 ** np.arange(10, 20)
    ]
    array: Array = np.array(rows)
    return Table(operator="all_reduce", direction=ONCE, workloads=array[:, :3], times_us=array[:, 3])


def parts(table: Table) -> tuple[HeldOutPart, ...]:
    def fitted(rows: npt.NDArray[np.int64]) -> Regressor:
        return fit(POWER_LAW, table.part(rows), 7)

    return held_out_parts(table, fitted)


def test_elementwise_operators_are_held_out_by_their_elements() -> None:
    found = parts(gelus())
    assert [one.kind for one in found] == ["size"] * 3
    # Of 40 rows, five to a doubling, an eighth has too few that lie half a doubling outside; two rows are too near.
    assert [len(one.rows) for one in found] == [8, 18, 28]
    assert [round(float(one.doublings.max()), 1) for one in found] == [2.0, 4.0, 6.0]


def test_the_half_width_holds_every_part() -> None:
    table, found = gelus(), parts(gelus())
    widening = widening_of(table, NARROW, found)
    assert widening.size_per_doubling > 0.05
    for part in found:
        held = part.off <= 0.01 + widening.size_per_doubling * part.doublings
        assert held.mean() >= 0.9


def test_the_coverage_of_a_part_is_that_of_the_others_half_width() -> None:
    easy = HeldOutPart(kind="size", rows=np.arange(10), doublings=np.ones(10), off=np.full(10, 0.05))
    hard = HeldOutPart(kind="size", rows=np.arange(10, 20), doublings=np.full(10, 2.0), off=np.full(10, 0.5))
    widening = widening_of(gelus(), NARROW, [easy, hard])
    assert widening.size_per_doubling == pytest.approx((0.5 - 0.01) / 2)
    assert [(one.doublings, one.rows, one.inside) for one in widening.held_out] == [(1, 10, 1), (2, 10, 0)]


def test_whole_layouts_are_held_out() -> None:
    found = [one for one in parts(reduces()) if one.kind == "layout"]
    assert len(found) == 4
    assert {float(one.doublings[0]) for one in found} == {1.0}
    assert all(len(one.rows) == 10 for one in found)
    assert widening_of(reduces(), NARROW, found).layout_per_doubling > 0


@pytest.mark.parametrize(("special", "expected"), [(1.0, 0.0), (1.3, math.log(1.3))])
def test_whole_roles_are_held_out(special: float, expected: float) -> None:
    table = gemms(special=special)
    found = [one for one in parts(table) if one.kind == "role"]
    assert len(found) == 2
    widening = widening_of(table, NARROW, found)
    assert widening.new_role == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize(
    ("first", "second", "held_out"),
    [(8, 5, [5]), (7, 5, []), (8, 4, []), (9, 8, [9, 8])],  # 8 rows are fitted at least, and 5 tested
)
def test_a_part_is_held_out_where_enough_rows_are_left(first: int, second: int, held_out: list[int]) -> None:
    rows = [
        (1024.0 + number, nodes, 2) for nodes, count in ((1, first), (2, second)) for number in range(count)
    ]
    workloads = np.array(rows)
    workloads[:, 0] = 1024 + workloads[:, 0] % 3  # too few values for a part by size
    table = Table(operator="all_reduce", direction=ONCE, workloads=workloads, times_us=workloads[:, 0])
    assert [len(one.rows) for one in parts(table)] == held_out


def test_rows_too_near_are_no_part_and_hide_none_behind_them() -> None:
    table = gelus()
    # The largest rows lie within a third of a doubling of the others: only the layouts of a copy count.
    elements = np.concatenate([np.linspace(1000, 1010, 20), np.linspace(1011, 1020, 20)])
    near = replace(table, workloads=np.column_stack([np.ones(40), np.ones(40), elements]))
    assert parts(near) == ()


def test_where_nothing_can_be_held_out_a_prior_holds() -> None:
    few = gelus(9)
    assert replace(widening_of(few, NARROW, parts(few)), held_out=()) == PRIOR
    one = HeldOutPart(kind="layout", rows=np.arange(9), doublings=np.ones(9), off=np.full(9, 0.02))
    assert widening_of(few, NARROW, [one]).layout_per_doubling == PRIOR.layout_per_doubling
