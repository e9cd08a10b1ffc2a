"""The next workloads of an operator: far from the measured ones, and where a committee of small regressors disagrees.

The committee has forms that `train` tries, with few trees.
"""

from collections.abc import Mapping, Sequence

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


FIRST_ROWS = 12
"""Space-filling workloads before the committee decides."""

_LEAST_BATCH = 4
# A share of the measured rows, so that refits stay affordable: one for each twelfth more rows.
_BATCH_SHARE = 0.08
_CONSTANT = 1e-9  # the standard deviation of equal logarithms is seldom exactly 0
_DISAGREEMENT_FLOOR = 1e-3  # where all agree, distance decides


def positions(workloads: Array) -> Array:
    """Workloads as points: logarithms of the features that vary, each scaled to a standard deviation of 1."""
    logs = np.log(np.maximum(workloads, 1.0))
    logs = logs[:, logs.std(axis=0) > _CONSTANT]
    if not logs.shape[1]:
        return np.zeros((len(workloads), 1))
    scaled: Array = (logs - logs.mean(axis=0)) / logs.std(axis=0)
    return scaled


def space_filling(
    points: Array, measured: Sequence[int], count: int, *, weights: Array | None = None
) -> list[int]:
    """Indices of `count` points, each the farthest from all measured and chosen ones; `weights` scale distances."""
    chosen: list[int] = []
    taken = set(measured)
    if not taken:
        chosen.append(int(np.argmin(((points - points.mean(axis=0)) ** 2).sum(axis=1))))
        taken.add(chosen[0])
    distance = np.full(len(points), np.inf)
    for number in taken:
        distance = np.minimum(distance, ((points - points[number]) ** 2).sum(axis=1) ** 0.5)
    scale = np.ones(len(points)) if weights is None else weights
    while len(chosen) < count and len(taken) < len(points):
        score = scale * distance
        score[list(taken)] = -1.0
        best = int(np.argmax(score))
        chosen.append(best)
        taken.add(best)
        distance = np.minimum(distance, ((points - points[best]) ** 2).sum(axis=1) ** 0.5)
    return chosen[:count]


def batch_size(measured: int) -> int:
    """Workloads to measure between two refits of a committee, after `measured` ones."""
    return max(_LEAST_BATCH, round(_BATCH_SHARE * measured))


def next_workloads(
    workloads: Array,
    tables: Sequence[Table],
    measured: Sequence[int],
    count: int,
    rng: Generator,
    *,
    seconds: Array | None = None,
) -> list[int]:
    """Indices of the workloads [rows, features] to measure next by gain: the committee's disagreement, averaged over
    the `tables` (known times, one per direction), times the distance to the `measured`, over the `seconds` [rows],
    where given.
    """
    points = positions(workloads)
    if len(measured) < FIRST_ROWS or not tables:
        return space_filling(points, measured, count)
    gain = sum(disagreement(table, workloads, rng) for table in tables) / len(tables)
    gain = np.maximum(gain, _DISAGREEMENT_FLOOR)
    return space_filling(points, measured, count, weights=gain if seconds is None else gain / seconds)


def subset(tables: Sequence[Table], rows: Sequence[int]) -> list[Table]:
    return [table.part(np.asarray(rows, dtype=np.int64)) for table in tables]
