"""A regressor of one operator and direction: a baseline, and trees on what the baseline leaves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import RandomForestRegressor
from xgboost import XGBRegressor

from kernelcast.runtime.operators import OPERATORS
from kernelcast.train.baseline import Baseline, fit_baseline
from kernelcast.train.dataset import Array, Table

# Neither library is typed; both have fit and predict.
Trees: TypeAlias = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to fit: algorithm ("random_forest" or "xgboost"), form of the baseline, hyperparameters of the trees."""

    algorithm: str
    form: str
    hyperparameters: Mapping[str, int | float]

    def trees(self, seed: int) -> Trees:
        """Unfitted trees; one thread, so that a fit is the same on every machine."""
        if self.algorithm == "random_forest":
            return RandomForestRegressor(random_state=seed, n_jobs=1, **self.hyperparameters)
        # base_score is fixed because the ONNX converter takes it from here; the target is centred by the baseline.
        return XGBRegressor(
            random_state=seed,
            n_jobs=1,
            tree_method="exact",
            base_score=0.0,
            verbosity=0,
            **self.hyperparameters,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Regressor:
    """A fitted candidate."""

    candidate: Candidate
    operator: str
    baseline: Baseline
    trees: Trees

    def predict_us(self, workloads: Array) -> Array:
        """Times in µs [rows] of workload vectors [rows, features]."""
        residual = self.trees.predict(tree_inputs(workloads))
        log_us = self.baseline.predict_log(workloads) + np.asarray(residual, dtype=np.float64)
        # A power law far outside its samples may leave the numbers that there are.
        with np.errstate(over="ignore"):
            times_us: Array = np.exp(log_us)
        return times_us


def fit(candidate: Candidate, table: Table, seed: int) -> Regressor:
    """Fit baseline, then trees on the logarithm of measured time / baseline."""
    baseline = fit_baseline(
        candidate.form, OPERATORS[table.operator], table.direction, table.workloads, table.times_us
    )
    residual = np.log(table.times_us) - baseline.predict_log(table.workloads)
    trees = candidate.trees(seed)
    trees.fit(tree_inputs(table.workloads), residual)
    return Regressor(candidate=candidate, operator=table.operator, baseline=baseline, trees=trees)


def tree_inputs(workloads: Array) -> npt.NDArray[np.float32]:
    """The features and, last, their product: [rows, features + 1] in float32.

    Plain products in a fixed order round alike in numpy and in ONNX Runtime, so that a split falls the same way in
    both; logarithms would not, and trees do not need them.
    """
    single = workloads.astype(np.float32)
    product = single[:, 0].copy()
    for column in range(1, single.shape[1]):
        product *= single[:, column]
    return np.column_stack([single, product])
