"""Chooses a candidate per operator and direction on a 20 % validation split, and refits it on everything."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.model_selection import train_test_split

from kernelcast.train.dataset import Array, Table
from kernelcast.train.regressor import Candidate, Regressor, fit

FEWEST_ROWS = 8
_VALIDATION_SHARE = 0.2

CANDIDATES: Sequence[Candidate] = tuple(
    Candidate(algorithm=algorithm, form=form, hyperparameters=hyperparameters)
    for form in ("raw", "power_law", "roofline")
    for algorithm, hyperparameters in (
        ("random_forest", {"n_estimators": 60, "max_depth": 8}),
        ("random_forest", {"n_estimators": 60, "max_depth": 8, "min_samples_leaf": 3}),
        ("xgboost", {"n_estimators": 60, "max_depth": 2, "learning_rate": 0.1}),
        ("xgboost", {"n_estimators": 150, "max_depth": 4, "learning_rate": 0.1, "subsample": 0.8}),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The winner of one table: refitted on all rows; `validation_error` is the mean absolute relative error."""

    table: Table
    regressor: Regressor
    validation_error: float


def select(table: Table, seed: int) -> Selected:
    """Fit every candidate on 80 % of the rows, keep the one with the smallest error on the other 20 %.

    Needs at least `FEWEST_ROWS` rows.
    """
    training, validation = train_test_split(
        np.arange(len(table)), test_size=_VALIDATION_SHARE, random_state=seed
    )
    errors = [
        relative_error(fit(candidate, _rows(table, training), seed), _rows(table, validation))
        for candidate in CANDIDATES
    ]
    best = int(np.argmin(errors))
    return Selected(table=table, regressor=fit(CANDIDATES[best], table, seed), validation_error=errors[best])


def _rows(table: Table, which: Array) -> Table:
    return Table(
        operator=table.operator,
        direction=table.direction,
        workloads=table.workloads[which],
        times_us=table.times_us[which],
    )


def relative_error(regressor: Regressor, table: Table) -> float:
    """Mean of |predicted − measured| / measured over a table."""
    return float(np.mean(np.abs(regressor.predict_us(table.workloads) / table.times_us - 1)))
