"""Fitted candidates: repeatable, sane with the fewest rows, and their trees' inputs the same in numpy and ONNX."""

from collections.abc import Callable

import numpy as np
import pytest

from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.train.baseline import PowerLaw
from kernelcast.train.dataset import Table
from kernelcast.train.formula import tree_inputs
from kernelcast.train.regressor import Candidate, Regressor, all_candidates, fit
from kernelcast.train.selection import FEWEST_ROWS

CANDIDATES = all_candidates().every

candidates = pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda c: f"{c.form}-{c.algorithm}")


def test_candidates_are_both_algorithms_on_every_form() -> None:
    found = {(candidate.algorithm, candidate.form) for candidate in CANDIDATES}
    forms = ("raw", "power_law", "roofline")
    assert found == {(a, form) for a in ("random_forest", "xgboost") for form in forms}


@candidates
def test_the_same_seed_gives_the_same_regressor(
    make_table: Callable[..., Table], candidate: Candidate
) -> None:
    table = make_table(noise=0.2)
    one, two = (fit(candidate, table, 7).predict_us(table.workloads) for _ in range(2))
    assert one.tolist() == two.tolist()
    if candidate.algorithm == "random_forest":
        assert fit(candidate, table, 8).predict_us(table.workloads).tolist() != one.tolist()


@candidates
@pytest.mark.parametrize("operator", ["gemm", "rope", "embedding"])
def test_the_fewest_rows_give_no_nonsense(
    make_table: Callable[..., Table], candidate: Candidate, operator: str
) -> None:
    table = make_table(operator, Direction.BACKWARD, FEWEST_ROWS, noise=0.1)
    regressor = fit(candidate, table, 0)
    for workloads in (table.workloads, 8 * table.workloads, np.ones_like(table.workloads)):
        predicted = regressor.predict_us(workloads)
        assert np.isfinite(predicted).all()
        assert (predicted > 0).all()
    # A mean of the rows it was fitted on is the least that each must beat.
    error = np.abs(np.log(regressor.predict_us(table.workloads) / table.times_us)).mean()
    logs = np.log(table.times_us)
    assert error < 0.7 * np.abs(logs - logs.mean()).mean()


@candidates
def test_equal_times_are_predicted_everywhere(make_table: Callable[..., Table], candidate: Candidate) -> None:
    table = make_table(law=lambda v: 12.5, count=10)
    assert fit(candidate, table, 0).predict_us(8 * table.workloads) == pytest.approx(
        np.full(10, 12.5), rel=2e-3
    )


@candidates
def test_only_physics_follows_beyond_the_samples(
    make_table: Callable[..., Table], candidate: Candidate
) -> None:
    def law(v: tuple[int, ...]) -> float:
        return 2e-3 * v[0] * v[1] * v[2]

    table = make_table(law=law, count=30)
    far = 16 * table.workloads
    errors = np.abs(fit(candidate, table, 0).predict_us(far) / (16**3 * table.times_us) - 1)
    # Trees alone return the edge value of what they were fitted on, for most of these rows.
    assert np.median(errors) > 0.9 if candidate.form == "raw" else errors.max() < 0.01


def test_tree_inputs_are_features_and_product_in_float32() -> None:
    inputs = tree_inputs(np.array([[3.0, 5.0, 7.0], [2**24 + 1.0, 1.0, 1.0]]), OPERATORS["gemm"])
    assert inputs.dtype == np.float32
    assert inputs.tolist() == [[3, 5, 7, 105], [2**24, 1, 1, 2**24]]


def test_a_prediction_beyond_all_numbers_is_infinite(make_table: Callable[..., Table]) -> None:
    fitted = fit(CANDIDATES[0], make_table(), 0)
    steep = PowerLaw(exponents=(99.0, 99.0, 99.0), intercept=0.0)
    regressor = Regressor(candidate=CANDIDATES[0], operator="gemm", baseline=steep, trees=fitted.trees)
    assert regressor.predict_us(np.full((1, 3), 1e9)).tolist() == [np.inf]
