"""Operators measured with companions: rows of another level, regressors of their own, and which one answers."""

import numpy as np
import pytest

from kernelcast.runtime.operators import Direction
from kernelcast.train.dataset import Array, Table
from kernelcast.train.levels import base_of, scaled
from kernelcast.train.selection import select

F = Direction.FORWARD
NOTHING = np.empty((0, 3))


def table(rows: int, factor: float, *, processes: int = 1, exponent: float = 0.0, seed: int = 1) -> Table:
    """Times of gelu as its size, times `factor`, which grows with the time to the power of `exponent`."""
    generator = np.random.default_rng(seed)
    workloads = generator.choice([64, 128, 256, 512, 1024], size=(4 * rows, 3)).astype(np.float64)
    workloads = np.unique(workloads, axis=0)[:rows]
    alone_us = workloads.prod(axis=1) / 1e4
    return Table(
        operator="gelu",
        direction=F,
        workloads=workloads,
        times_us=alone_us * factor * alone_us**exponent,
        processes_per_node=processes,
    )


def test_the_base_is_the_nearest_lower_level() -> None:
    one, two, four = (table(9, 1.0, processes=n) for n in (1, 2, 4))
    assert base_of(one, [one, two, four]) is None
    assert base_of(four, [four, one, two]) is two
    assert base_of(two, [four, one, two]) is one


def test_rows_are_scaled_by_what_both_levels_measured() -> None:
    base, own = table(40, 1.0), table(5, 1.25, processes=2)
    found = scaled(base, own, unseen=NOTHING)
    assert found is not None
    assert found.key == ("gelu", F, 2)
    assert found.times_us == pytest.approx(1.25 * base.times_us)


def test_a_factor_that_grows_with_the_time_is_followed_within_its_range() -> None:
    base = table(60, 1.0)
    own = table(60, 1.02, processes=2, exponent=0.05)
    half = Table(
        operator="gelu",
        direction=F,
        workloads=own.workloads[::2],
        times_us=own.times_us[::2],
        processes_per_node=2,
    )
    found = scaled(base, half, unseen=NOTHING)
    assert found is not None
    factors, expected = found.times_us / base.times_us, own.times_us / base.times_us
    assert factors == pytest.approx(expected, rel=0.05)
    assert factors.max() <= (half.times_us / base.times_us[::2]).max() * (1 + 1e-9)


def test_nothing_is_known_of_rows_that_are_held_out() -> None:
    base, own = table(30, 1.0), table(20, 1.1, processes=2)
    unseen = own.workloads[:6]
    seen = Table(
        operator="gelu",
        direction=F,
        workloads=own.workloads[6:],
        times_us=own.times_us[6:],
        processes_per_node=2,
    )
    found = scaled(base, seen, unseen=unseen)
    assert found is not None
    assert len(found) == 24
    assert not {tuple(row) for row in found.workloads} & {tuple(row) for row in unseen}


def test_too_few_workloads_in_common_say_nothing() -> None:
    assert scaled(table(30, 1.0), table(3, 1.1, processes=2), unseen=NOTHING) is None


def noisy(found: Table, seed: int) -> Table:
    noise = np.exp(np.random.default_rng(seed).normal(0, 0.05, len(found)))
    return Table(
        operator=found.operator,
        direction=found.direction,
        workloads=found.workloads,
        times_us=found.times_us * noise,
        processes_per_node=found.processes_per_node,
    )


def test_few_rows_of_a_level_lean_on_the_one_below() -> None:
    # Ten rows cannot show where the time bends; the forty alone can.
    base = table(40, 1.0)
    bent_us = base.times_us + 20 * np.maximum(0, base.times_us / 300 - 1) * base.times_us**0.5
    base = Table(operator="gelu", direction=F, workloads=base.workloads, times_us=bent_us)
    own = Table(
        operator="gelu",
        direction=F,
        workloads=base.workloads[::4],
        times_us=1.3 * bent_us[::4],
        processes_per_node=2,
    )
    asked: Array = np.delete(base.workloads, np.s_[::4], axis=0)
    truth = 1.3 * np.delete(bent_us, np.s_[::4])

    def error(selected_from: Table | None) -> float:
        chosen = select(noisy(own, 3), 20, base=selected_from and noisy(selected_from, 4)).regressor
        return float(np.mean(np.abs(chosen.predict_us(asked) / truth - 1)))

    assert error(base) < 0.8 * error(None)
