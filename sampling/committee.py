"""A committee of small regressors, forms that `train` tries with few trees: where they disagree, and their error."""

from collections.abc import Mapping

import numpy as np
from numpy.random import Generator

from kernelcast.runtime.operators import OPERATORS
from kernelcast.train.dataset import Array, Table
from kernelcast.train.regressor import Candidate, fit
from kernelcast.train.selection import relative_errors

_Parameters = Mapping[str, int | float | str]

_FOLDS = 5
# A prediction far outside the samples may be any number; its logarithm must stay finite.
_LEAST_US, _MOST_US = 1e-3, 1e12

_TREES: _Parameters = {"n_estimators": 27, "max_depth": 4, "learning_rate": 0.3, "subsample": 0.8}
_STUMPS: _Parameters = {"n_estimators": 20, "max_depth": 1, "learning_rate": 0.3, "min_child_weight": 3}

_HUBER_STUMPS: _Parameters = {**_STUMPS, "objective": "reg:pseudohubererror", "huber_slope": 0.5}
_COMPUTE = (
    ("power_law", _TREES), ("roofline", _TREES), ("roofline", _STUMPS), ("power_law", _STUMPS), ("raw", _TREES),
)  # fmt: skip
_COLLECTIVE = (
    ("latency_bandwidth", _HUBER_STUMPS), ("raw", _TREES), ("power_law", _TREES), ("roofline", _TREES),
)  # fmt: skip


def members(operator: str) -> tuple[Candidate, ...]:
    """The committee of an operator."""
    rows = _COLLECTIVE if OPERATORS[operator].is_collective else _COMPUTE
    return tuple(Candidate(algorithm="xgboost", form=form, hyperparameters=trees) for form, trees in rows)


def disagreement(table: Table, asked: Array, rng: Generator) -> Array:
    """Standard deviation of log(time), [rows of `asked`], over members, each fitted to all rows and to a bootstrap."""
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
