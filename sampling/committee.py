"""A committee of small regressors: where they disagree, and how far they are off on rows they were not fitted to.

Its members are the forms that `train` tries, with few trees, so that asking them costs far less than a measurement.
"""

from collections.abc import Mapping

import numpy as np
from numpy.random import Generator

from kernelcast.runtime.operators import OPERATORS
from kernelcast.train.dataset import Array, Table
from kernelcast.train.regressor import Candidate, fit
from kernelcast.train.selection import relative_errors

_FOLDS = 5
# A prediction far outside the samples may be any number; its logarithm must stay one.
_LEAST_US, _MOST_US = 1e-3, 1e12

_TREES: Mapping[str, int | float | str] = {
    "n_estimators": 27,
    "max_depth": 4,
    "learning_rate": 0.3,
    "subsample": 0.8,
}
_STUMPS: Mapping[str, int | float | str] = {
    "n_estimators": 20,
    "max_depth": 1,
    "learning_rate": 0.3,
    "min_child_weight": 3,
}

_COMPUTE = tuple(
    Candidate(algorithm="xgboost", form=form, hyperparameters=trees)
    for form, trees in (
        ("power_law", _TREES),
        ("roofline", _TREES),
        ("roofline", _STUMPS),
        ("power_law", _STUMPS),
        ("raw", _TREES),
    )
)
_COLLECTIVE = tuple(
    Candidate(algorithm="xgboost", form=form, hyperparameters=trees)
    for form, trees in (
        ("latency_bandwidth", {**_STUMPS, "objective": "reg:pseudohubererror", "huber_slope": 0.5}),
        ("raw", _TREES),
        ("power_law", _TREES),
        ("roofline", _TREES),
    )
)


def members(operator: str) -> tuple[Candidate, ...]:
    """The committee of an operator."""
    return _COLLECTIVE if OPERATORS[operator].is_collective else _COMPUTE


def disagreement(table: Table, asked: Array, rng: Generator) -> Array:
    """Standard deviation of log(time) over the committee, [rows of `asked`].

    Every member answers twice: fitted to all rows, and to a bootstrap sample of them.
    """
    answers = []
    for member in members(table.operator):
        for rows in (np.arange(len(table)), rng.integers(0, len(table), len(table))):
            regressor = fit(member, table.part(rows), int(rng.integers(2**31)))
            answers.append(np.log(np.clip(regressor.predict_us(asked), _LEAST_US, _MOST_US)))
    spread: Array = np.std(answers, axis=0)
    return spread


def best_member(table: Table, seed: int) -> tuple[Candidate, float]:
    """The member with the smallest cross-validated error, and that error, a fraction."""
    folds = np.random.default_rng(seed).permutation(len(table)) % _FOLDS
    errors = []
    for member in members(table.operator):
        found = np.empty(len(table))
        for fold in range(_FOLDS):
            held_out = folds == fold
            regressor = fit(member, table.part(~held_out), seed)
            found[held_out] = relative_errors(
                regressor.predict_us(table.workloads[held_out]), table.times_us[held_out]
            )
        errors.append(float(found.mean()))
    best = int(np.argmin(errors))
    return members(table.operator)[best], errors[best]
