"""Which workloads are next: those that fill the space, then those where the committee disagrees."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.runtime.operators import Direction
from kernelcast.sampling.design import (
    batch_size,
    best_member,
    disagreement,
    members,
    next_workloads,
    positions,
    space_filling,
    subset,
)
from kernelcast.train.dataset import Array, Table

GRID = np.array(list(product((1, 2, 4), (64, 128, 256, 512), (128, 256, 512, 1024))), dtype=float)


def gelu(workloads: Array, *, step_at: float = np.inf) -> Table:
    """10 µs and 1 ns per element; 10 ns per element above `step_at` elements."""
    elements = workloads.prod(axis=1)
    times = 10 + 1e-3 * elements * np.where(elements > step_at, 10, 1)
    return Table(operator="gelu", direction=Direction.FORWARD, workloads=workloads, times_us=times)


def test_positions_have_one_scale_and_no_constant_feature() -> None:
    found = positions(np.column_stack([GRID, np.full(len(GRID), 7.0)]))
    assert found.shape == (48, 3)
    assert np.allclose(found.std(axis=0), 1)
    assert positions(np.full((3, 2), 5.0)).shape == (3, 1)


@given(count=st.integers(1, 60), known=st.sets(st.integers(0, 47), max_size=48))
@settings(max_examples=40, deadline=None)
def test_space_filling_names_new_points_once(count: int, known: set[int]) -> None:
    chosen = space_filling(positions(GRID), sorted(known), count)
    assert len(set(chosen)) == len(chosen) == min(count, 48 - len(known))
    assert not known & set(chosen)


def test_space_filling_goes_from_the_middle_to_the_corners() -> None:
    line = np.linspace(0, 1, 11)[:, None]
    assert sorted(space_filling(line, [], 3)) == [0, 5, 10]
    assert space_filling(line, [0], 1) == [10]
    weights = np.where(line[:, 0] < 0.5, 10.0, 1.0)
    assert space_filling(line, [0], 1, weights=weights) == [4]


def test_the_committee_disagrees_where_it_knows_nothing() -> None:
    small = GRID[GRID.prod(axis=1) <= 2**17]
    table = gelu(small, step_at=2**15)
    spread = disagreement(table, GRID, np.random.default_rng(0))
    inside = GRID.prod(axis=1) <= 2**17
    assert spread.shape == (48,)
    assert spread[~inside].mean() > 2 * spread[inside].mean()


def test_an_error_is_small_where_a_member_has_the_law() -> None:
    member, error = best_member(gelu(GRID), 0)
    assert member in members("gelu")
    assert error < 0.03
    noisy = gelu(GRID)
    noise = np.exp(np.random.default_rng(1).normal(0, 0.3, 48))
    _, worse = best_member(Table(**{n: getattr(noisy, n) for n in ("operator", "direction", "workloads")},
                                 times_us=noisy.times_us * noise), 0)  # fmt: skip
    assert worse > 0.1


def test_collectives_have_a_committee_of_their_own() -> None:
    assert {m.form for m in members("all_reduce")} > {"latency_bandwidth"}
    assert "latency_bandwidth" not in {m.form for m in members("gelu")}


@pytest.mark.parametrize("known", [0, 5, 20])
def test_next_workloads_are_new(known: int) -> None:
    measured = list(range(known))
    tables = subset([gelu(GRID)], measured) if known else []
    chosen = next_workloads(GRID, tables, measured, 4, np.random.default_rng(0))
    assert len(set(chosen)) == 4
    assert not set(chosen) & set(measured)


def test_batches_grow_with_what_is_known() -> None:
    assert [batch_size(known) for known in (0, 12, 50, 100, 900)] == [4, 4, 4, 8, 72]


def test_what_takes_long_must_promise_more() -> None:
    measured = list(range(0, 48, 3))
    tables = subset([gelu(GRID)], measured)
    seconds = np.ones(48)
    free = next_workloads(GRID, tables, measured, 6, np.random.default_rng(0), seconds=seconds)
    seconds[free[0]] = 1e6
    assert free[0] not in next_workloads(GRID, tables, measured, 6, np.random.default_rng(0), seconds=seconds)


def test_the_same_rows_of_tables() -> None:
    table = gelu(GRID)
    (few,) = subset([table], [3, 1])
    assert few.workloads.tolist() == GRID[[3, 1]].tolist()
    assert few.times_us.tolist() == table.times_us[[3, 1]].tolist()
