"""Latency and bandwidth per layout: recovered from measurements, deaf to outliers, sane where nothing was measured."""

from collections.abc import Callable, Sequence

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kernelcast.runtime.bundle.regressor_entry import Interval
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.train.collective_baseline import FADE, LatencyBandwidth, fit_latency_bandwidth, passes
from kernelcast.train.dataset import Array, Table
from kernelcast.train.export import PARITY_TOLERANCE, check_parity, to_onnx
from kernelcast.train.formula import flat
from kernelcast.train.regressor import Candidate, all_candidates, fit

LAYOUTS = ((1, 2), (1, 4), (2, 1), (2, 2), (4, 1), (8, 1))
COLLECTIVES = [op.name for op in OPERATORS.values() if op.is_collective]
Law = Callable[[str, Array], Array]


def ring_passes(collective: str, processes: Array) -> Array:
    found = OPERATORS[collective].ring_passes
    assert found is not None
    return np.asarray(passes(found, processes))


def fitted(collective: str, workloads: Array, times_us: Array) -> LatencyBandwidth:
    return fit_latency_bandwidth(OPERATORS[collective], workloads, times_us)


def scale(found: LatencyBandwidth, workloads: Array) -> Array:
    return flat(found.residual_scale(workloads), len(workloads))


def law_us(collective: str, workloads: Array) -> Array:
    """40 µs and 200 GB/s per link within a node; 90 µs and 20 GB/s per GPU between nodes; 2 bytes per entry."""
    entries, nodes, gpus = workloads.T
    latency_us = np.where(nodes > 1, 90.0, 40.0)
    gigabytes_per_s = np.where(nodes > 1, 20.0 * gpus, 200.0)
    return np.asarray(
        latency_us + ring_passes(collective, nodes * gpus) * entries * 2 / gigabytes_per_s / 1e3
    )


def workloads_of(layouts: Sequence[tuple[int, int]], count: int = 24) -> Array:
    entries = np.geomspace(1e4, 1e8, count).round()
    return np.array([[e, *layout] for layout in layouts for e in entries])


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_law_is_recovered_within_beyond_and_between_layouts(collective: str) -> None:
    workloads = workloads_of(LAYOUTS)
    found = fitted(collective, workloads, law_us(collective, workloads))
    assert np.exp(found.predict_log(workloads)) == pytest.approx(law_us(collective, workloads), rel=1e-3)
    # Twelve times the largest message, a hundredth of the smallest, and layouts that were never measured.
    for asked in (
        np.array([[1.2e9, 8, 1], [100, 1, 2]]),
        workloads_of([(4, 2), (2, 4), (16, 1), (16, 4), (3, 1)]),
    ):
        assert np.exp(found.predict_log(asked)) == pytest.approx(law_us(collective, asked), rel=0.15)


def test_work_of_rings_is_that_of_bus_bandwidths() -> None:
    processes = np.array([2.0, 4.0, 8.0])
    assert ring_passes("all_reduce", processes).tolist() == [1, 1.5, 1.75]
    assert ring_passes("all_gather", processes).tolist() == [1, 3, 7]  # entries are one process's shard
    assert ring_passes("reduce_scatter", processes).tolist() == [0.5, 0.75, 0.875]
    assert ring_passes("point_to_point", processes).tolist() == [1, 1, 1]


def test_outliers_do_not_move_the_line() -> None:
    workloads = workloads_of([(1, 4)], 60)
    times_us = law_us("all_reduce", workloads)
    disturbed = times_us.copy()
    disturbed[::4] *= 26
    found = fitted("all_reduce", workloads, disturbed)
    assert np.exp(found.predict_log(workloads)) == pytest.approx(times_us, rel=0.01)
    assert found.layouts[0].spread < 0.01


def test_each_layout_has_its_own_spread_and_few_rows_share_one() -> None:
    workloads = np.concatenate([workloads_of([(1, 2), (2, 1)], 200), workloads_of([(4, 1)], 3)])
    deviations = np.array([0.01] * 200 + [0.3] * 200 + [0.0] * 3)
    noise = np.exp(deviations * np.random.default_rng(0).standard_normal(403))
    found = fitted("all_gather", workloads, law_us("all_gather", workloads) * noise)
    quiet, loud, few = (layout.spread for layout in found.layouts)
    assert quiet == pytest.approx(0.01, rel=0.3)
    assert loud == pytest.approx(0.3, rel=0.3)
    assert quiet < few < loud


def test_trees_add_nothing_in_other_layouts_and_fade_out_beyond_the_sizes() -> None:
    workloads = workloads_of([(1, 2), (2, 1)])
    found = fitted("all_reduce", workloads, law_us("all_reduce", workloads))
    spread = found.layouts[0].spread
    asked = np.array([[1e6, 1, 2], [1e8, 1, 2], [1e8 * FADE**0.5, 1, 2], [1e8 * FADE, 1, 2], [1e9, 1, 2]])
    assert scale(found, asked) == pytest.approx([spread, spread, spread / 2, 0, 0])
    assert scale(found, np.array([[1e4, 2, 1], [1e4 / FADE, 2, 1], [0, 2, 1]]))[1:] == pytest.approx(0)
    assert scale(found, np.array([[1e6, 1, 4], [1e6, 4, 1]])).tolist() == [0, 0]


@pytest.mark.parametrize("known", LAYOUTS)
def test_one_layout_says_nothing_about_the_other_kind_but_has_a_number(known: tuple[int, int]) -> None:
    workloads = workloads_of([known], 10)
    found = fitted("all_reduce", workloads, law_us("all_reduce", workloads))
    asked = workloads_of([(1, 2), (2, 1), (8, 8)])
    guessed = np.exp(found.predict_log(asked))
    assert np.isfinite(guessed).all()
    own = np.exp(found.predict_log(np.array([[1e8, *known]])))[0]
    assert 0.01 * own < guessed[asked[:, 0] == 1e8].min() <= guessed[asked[:, 0] == 1e8].max() < 100 * own


def test_rows_of_one_size() -> None:
    workloads = np.array([[1e6, 1, 2]] * 9)
    found = fitted("all_reduce", workloads, np.full(9, 70.0))
    assert np.exp(found.predict_log(workloads)) == pytest.approx(np.full(9, 70.0), rel=2e-3)
    assert np.isfinite(found.predict_log(np.array([[1e9, 1, 2], [1, 1, 2]]))).all()


sizes = hnp.arrays(np.float64, (12, 3), elements=st.integers(0, 2**20).map(float))
times = hnp.arrays(np.float64, 12, elements=st.floats(1e-3, 1e10))


@given(workloads=sizes, times_us=times, collective=st.sampled_from(COLLECTIVES))
def test_a_number_everywhere(workloads: Array, times_us: Array, collective: str) -> None:
    workloads[:, 1:] = workloads[:, 1:] % 4 + 1
    found = fitted(collective, workloads, times_us)
    for asked in (workloads, 100 * workloads, workloads + np.array([0, 3, 5])):
        assert np.isfinite(found.predict_log(asked)).all()
        assert (scale(found, asked) >= 0).all()


@pytest.mark.parametrize("candidate", all_candidates().collective, ids=lambda c: f"{c.algorithm}-{c.inputs}")
@pytest.mark.parametrize("operator", ["all_reduce", "all_gather", "reduce_scatter", "point_to_point"])
def test_onnx_answers_the_same(candidate: Candidate, operator: str) -> None:
    workloads = workloads_of(LAYOUTS, 30)
    noise = np.exp(0.2 * np.random.default_rng(3).standard_normal(len(workloads)))
    table = Table(
        operator=operator,
        direction=Direction.ONCE,
        workloads=workloads,
        times_us=law_us(operator, workloads) * noise,
    )
    regressor, interval = fit(candidate, table, 3), Interval.of_all(0.2)
    model = to_onnx(regressor, interval, {})
    assert check_parity(model, regressor, interval, table, 3) <= PARITY_TOLERANCE
    odd = np.concatenate(
        [workloads * 1.37, np.array([[0.0, 1, 2], [1e9, 3, 5], [1.2e9, 64, 8], [7.0, 1, 1]])]
    )
    odd = odd.round()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (answer,) = session.run(["time_us"], {"workload": odd.astype(np.float32)})
    assert answer[:, 0] == pytest.approx(regressor.predict_us(odd), rel=PARITY_TOLERANCE)


def test_trees_learn_in_units_of_each_layouts_spread() -> None:
    """A quiet layout's sawtooth of 2 % is found next to a layout whose rows differ by factors."""
    workloads = np.concatenate([workloads_of([(1, 2)], 400), workloads_of([(2, 1)], 400)])
    workloads[:, 0] = np.concatenate([np.arange(400) * 2**16 + 2**24] * 2)
    times_us = law_us("all_reduce", workloads)
    tooth = 1 + 0.02 * np.sign(workloads[:400, 0] % 2**18 - 2**17 + 1)
    loud = np.exp(1.0 * np.random.default_rng(1).standard_normal(400))
    times_us *= np.concatenate([tooth, loud])
    table = Table(operator="all_reduce", direction=Direction.ONCE, workloads=workloads, times_us=times_us)
    candidate = next(c for c in all_candidates().collective if c.inputs == "chunks")
    predicted_us = fit(candidate, table, 3).predict_us(workloads)[:400]
    assert np.median(np.abs(predicted_us / times_us[:400] - 1)) < 0.005
