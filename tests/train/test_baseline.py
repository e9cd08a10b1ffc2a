"""Each form of baseline recovers its own law, follows it beyond the samples, and is defined everywhere."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.train.baseline import (
    _KNEE_SPACING,
    Constant,
    PowerLaw,
    Roofline,
    _knees,
    fit_baseline,
    monomial_powers,
)
from kernelcast.train.dataset import Table

FORWARD, BACKWARD, ONCE = Direction.FORWARD, Direction.BACKWARD, Direction.ONCE
GEMM = OPERATORS["gemm"]
FORMS = ("raw", "power_law", "roofline")
KEYS = [(op.name, direction) for op in OPERATORS.values() for direction in op.costs]
Array = npt.NDArray[np.float64]


def relative(predicted: Array, expected: Array) -> float:
    return float(np.max(np.abs(predicted / expected - 1)))


def test_raw_is_the_mean_of_the_logarithms() -> None:
    found = fit_baseline("raw", GEMM, FORWARD, np.ones((2, 3)), np.array([1.0, 100.0]))
    assert isinstance(found, Constant)
    assert np.exp(found.predict_log(np.ones((3, 3)))) == pytest.approx([10, 10, 10])


def test_a_power_law_is_recovered_and_followed(make_table: Callable[..., Table]) -> None:
    def law(v: tuple[int, ...]) -> float:
        return 3 * v[0] ** 0.8 * v[1] ** 1.1 * v[2] ** 0.5

    table = make_table(law=law, count=30)
    found = fit_baseline("power_law", GEMM, FORWARD, table.workloads, table.times_us)
    assert isinstance(found, PowerLaw)
    assert found.exponents == pytest.approx((0.8, 1.1, 0.5), abs=1e-4)
    assert np.exp(found.intercept) == pytest.approx(3, rel=1e-3)
    far = np.array([[8192.0, 8192.0, 49152.0]])
    assert relative(np.exp(found.predict_log(far)), np.array([law((8192, 8192, 49152))])) < 0.003


def test_a_roofline_is_recovered_and_followed(make_table: Callable[..., Table]) -> None:
    def law(v: tuple[int, ...]) -> float:
        m, k, n = v
        return 20 + 2e-5 * m * k * n + 4e-3 * m * n

    table = make_table(law=law, count=30)
    found = fit_baseline("roofline", GEMM, FORWARD, table.workloads, table.times_us)
    assert isinstance(found, Roofline)
    assert found.powers == ((1, 1, 1), (1, 1, 0), (0, 1, 1), (1, 0, 1))
    assert found.weights_us == pytest.approx((2e-5, 0, 0, 4e-3), rel=1e-6, abs=1e-9)
    assert found.constant_us == pytest.approx(20)
    assert found.knee_weights_us == pytest.approx((0, 0, 0, 0, 0), abs=1e-9)
    far = np.array([[8192.0, 8192.0, 49152.0]])
    assert relative(np.exp(found.predict_log(far)), np.array([law((8192, 8192, 49152))])) < 1e-3


@pytest.mark.parametrize(("operator", "direction"), KEYS)
def test_every_operators_own_cost_is_recovered(
    make_table: Callable[..., Table], operator: str, direction: Direction
) -> None:
    table = make_table(operator, direction, count=40)
    found = fit_baseline("roofline", OPERATORS[operator], direction, table.workloads, table.times_us)
    assert relative(np.exp(found.predict_log(table.workloads)), table.times_us) < 1e-6
    assert relative(np.exp(found.predict_log(8 * table.workloads)), table.times_us) > 0


def test_latency_and_bandwidth_of_a_collective(make_table: Callable[..., Table]) -> None:
    # 40 µs, 2 GB/s and sizes from 1 to 2²⁴ entries: the law of any message on one layout.
    op = OPERATORS["point_to_point"]
    sizes = 2.0 ** np.arange(10, 25)
    workloads = np.column_stack([sizes, np.ones(15), np.full(15, 2.0)])
    found = fit_baseline("roofline", op, ONCE, workloads, 40 + sizes * 4 / 2e3)
    far = np.array([[1.2e9, 1.0, 2.0]])
    assert relative(np.exp(found.predict_log(far)), np.array([40 + 1.2e9 * 4 / 2e3])) < 1e-6


def test_beyond_a_full_cache_every_element_takes_longer() -> None:
    # Up to 2 million elements 1 ns each, then 5 ns each.
    op = OPERATORS["residual_add"]
    widths = np.geomspace(64, 4096, 24).round()
    workloads = np.column_stack([np.full(24, 4.0), np.full(24, 256.0), widths])
    elements = 3 * workloads.prod(axis=1)

    def law(moved: Array) -> Array:
        return np.asarray(30 + moved * 1e-3 + np.maximum(moved - 2e6, 0) * 4e-3)

    found = fit_baseline("roofline", op, FORWARD, workloads, law(elements))
    assert isinstance(found, Roofline)
    assert relative(np.exp(found.predict_log(workloads)), law(elements)) < 0.3
    far = np.array([[32.0, 1024.0, 8192.0]])
    assert relative(np.exp(found.predict_log(far)), law(3 * far.prod(axis=1))) < 0.1


def test_knees_are_apart_so_that_noise_between_near_sizes_is_no_slope() -> None:
    # Sizes within one percent of each other, at two ends: only between those a knee can be told from noise.
    op = OPERATORS["point_to_point"]
    entries = np.concatenate([1000 + np.arange(12.0), 1e6 + 1000 * np.arange(12)])
    workloads = np.column_stack([entries, np.ones(24), np.full(24, 2.0)])
    noise = np.exp(0.2 * np.random.default_rng(0).standard_normal(24))
    found = fit_baseline("roofline", op, ONCE, workloads, (40 + entries * 1e-3) * noise)
    assert isinstance(found, Roofline)
    assert [round(knee) for knee in found.knees] == [500506]
    [far_us] = np.exp(found.predict_log(np.array([[1e9, 1.0, 2.0]])))
    assert far_us == pytest.approx(1e6, rel=0.3)
    one_size = fit_baseline("roofline", op, ONCE, workloads[:12], 40 * noise[:12])
    assert isinstance(one_size, Roofline)
    assert one_size.knees == ()
    assert np.exp(one_size.predict_log(workloads[:12])) == pytest.approx(np.full(12, 40), rel=0.2)


def test_a_call_that_costs_nothing_has_a_thousandth_of_the_shortest_time() -> None:
    workloads = np.column_stack([np.full(12, 4.0), np.full(12, 256.0), np.geomspace(64, 4096, 12).round()])
    times_us = 3e-3 * workloads.prod(axis=1)
    found = fit_baseline("roofline", OPERATORS["gelu"], FORWARD, workloads, times_us)
    assert isinstance(found, Roofline)
    assert found.constant_us == pytest.approx(1e-3 * times_us.min())


def test_layers_of_an_optimizer_step_count_as_calls() -> None:
    op = OPERATORS["adam"]
    workloads = np.array([[p * 1000.0, e] for p in (1, 3, 10, 30) for e in (1, 2, 4, 8)])
    times_us = 10 + 0.002 * workloads[:, 0] + 20 * workloads[:, 1]
    found = fit_baseline("roofline", op, ONCE, workloads, times_us)
    assert relative(np.exp(found.predict_log(10 * workloads)), 10 + 10 * (times_us - 10)) < 1e-6


@pytest.mark.parametrize("form", FORMS)
def test_features_that_never_vary_and_equal_times(form: str) -> None:
    workloads = np.column_stack([2.0 ** np.arange(12), np.full(12, 64.0), np.full(12, 64.0)])
    found = fit_baseline(form, GEMM, FORWARD, workloads, np.full(12, 7.0))
    assert np.exp(found.predict_log(workloads)) == pytest.approx(np.full(12, 7.0), rel=2e-3)
    same = fit_baseline(form, GEMM, FORWARD, np.full((12, 3), 64.0), np.full(12, 7.0))
    assert np.exp(same.predict_log(np.full((2, 3), 64.0))) == pytest.approx([7, 7], rel=2e-3)


def test_a_feature_that_never_varies_has_no_exponent() -> None:
    workloads = np.column_stack([2.0 ** np.arange(12), np.full(12, 64.0), np.full(12, 64.0)])
    found = fit_baseline("power_law", GEMM, FORWARD, workloads, 2.0 ** np.arange(12))
    assert isinstance(found, PowerLaw)
    assert found.exponents == pytest.approx((1, 0, 0), abs=1e-4)


def test_a_stage_without_layers_has_a_time() -> None:
    op = OPERATORS["adam"]
    workloads = np.array([[1000.0 * 2**i, i % 4 + 1] for i in range(12)])
    times_us = 10 + 0.002 * workloads[:, 0]
    for form in FORMS[1:]:
        found = fit_baseline(form, op, ONCE, workloads, times_us)
        [none, one] = np.exp(found.predict_log(np.array([[4000.0, 0.0], [4000.0, 1.0]])))
        assert 0.5 * one < none <= one


@pytest.mark.parametrize(("operator", "direction"), KEYS)
def test_monomials_are_those_of_the_operator_table(operator: str, direction: Direction) -> None:
    op = OPERATORS[operator]
    cost, names = op.costs[direction], tuple(op.features)
    of_table = {tuple(term.features.count(name) for name in names) for term in (*cost.flops, *cost.elements)}
    found = monomial_powers(op, direction)
    assert len(set(found)) == len(found)
    assert of_table <= set(found)
    # The others are features that no cost mentions, each alone; never a collective's layout.
    used = {name for powers in of_table for name, power in zip(names, powers, strict=True) if power}
    unused = set() if op.is_collective else set(names) - used
    assert set(found) - of_table == {tuple(int(n == name) for n in names) for name in unused}


sizes = hnp.arrays(np.float64, (10, 3), elements=st.integers(0, 2**20).map(float))
times = hnp.arrays(np.float64, 10, elements=st.floats(1e-3, 1e10))


@given(form=st.sampled_from(FORMS), workloads=sizes, times_us=times)
def test_a_baseline_is_a_number_everywhere(form: str, workloads: Array, times_us: Array) -> None:
    for op, direction in ((GEMM, BACKWARD), (OPERATORS["all_gather"], ONCE)):
        found = fit_baseline(form, op, direction, workloads, times_us)
        assert np.isfinite(found.predict_log(workloads)).all()
        assert np.isfinite(found.predict_log(100 * workloads)).all()


@pytest.mark.parametrize("scale", [2.0**-40, 1.0, 2.0**40])
def test_knees_lie_apart_within_the_traffic_in_any_unit(scale: float) -> None:
    moved = np.geomspace(1.0, 1e6, 50)
    knees = _knees(moved * scale)
    assert knees == tuple(scale * knee for knee in _knees(moved))
    ends = [float(moved[0] * scale), *knees, float(moved[-1] * scale)]
    assert len(knees) > 1
    assert all(_KNEE_SPACING * one <= other for one, other in pairwise(ends))
    # At every sixth of the traffic, and exactly as far apart as allowed; not nearer.
    assert _knees(np.geomspace(1.0, 1e6, 7) * scale) == pytest.approx([scale * 10.0**n for n in range(1, 6)])
    apart = _KNEE_SPACING ** np.arange(7.0) * scale
    assert _knees(apart) == tuple(apart[1:-1])
    assert _knees(np.array([1.0, 1.4, *apart[2:]]) * scale)[0] != 1.4 * scale
    # Of no traffic there is none, nor where all is alike.
    assert _knees(np.zeros(50)) == _knees(np.full(50, scale)) == ()
