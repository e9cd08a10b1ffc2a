"""A regressor of one operator and direction: a baseline, and trees on its residual."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from sklearn.ensemble import RandomForestRegressor
from xgboost import XGBRegressor

from kernelcast.runtime.operators import OPERATORS
from kernelcast.train.baseline import fit_baseline
from kernelcast.train.collective_baseline import LatencyBandwidth
from kernelcast.train.dataset import Array, Table
from kernelcast.train.features import tree_inputs
from kernelcast.train.formula import Baseline, Column, flat

# Neither library is typed; both have fit and predict.
Trees: TypeAlias = Any

# In robust spreads: larger residuals are cut to it. Collectives only; see `LatencyBandwidth`.
_FARTHEST = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to fit: algorithm ("random_forest" or "xgboost"), form of the baseline, hyperparameters of the trees.

    `inputs` names the input columns of the trees (features.py). A `shared` candidate is fitted also on rows of the
    operator with fewer processes per node (levels.py).
    """

    algorithm: str
    form: str
    hyperparameters: Mapping[str, int | float | str]
    inputs: str = "product"
    shared: bool = False

    @property
    def settings(self) -> dict[str, int | float | str]:
        """Everything except algorithm and form, as plain values."""
        shared = {"shared": True} if self.shared else {}
        return {**self.hyperparameters, "inputs": self.inputs, **shared}

    def trees(self, seed: int) -> Trees:
        """Unfitted trees; one thread, so that a fit is the same on every machine."""
        if self.algorithm == "random_forest":
            return RandomForestRegressor(random_state=seed, n_jobs=1, **self.hyperparameters)
        # base_score is fixed because the ONNX converter takes it from here; the target is centred by the baseline.
        fixed = {"random_state": seed, "n_jobs": 1, "base_score": 0.0, "verbosity": 0}
        return XGBRegressor(**{"tree_method": "exact", **self.hyperparameters, **fixed})


@dataclass(frozen=True, slots=True, kw_only=True)
class Regressor:
    """A fitted candidate."""

    candidate: Candidate
    operator: str
    baseline: Baseline
    trees: Trees

    @property
    def tree_nodes(self) -> int:
        """Nodes of all trees: the size of the exported file, and the time to load it, follow them."""
        if isinstance(self.trees, XGBRegressor):
            return sum(text.count("\n") for text in self.trees.get_booster().get_dump())
        return sum(int(tree.tree_.node_count) for tree in getattr(self.trees, "estimators_", ()))

    def log_us(self, workloads: Array, trees_answer: Column) -> Column:
        """Logarithm of the time in µs, [rows, 1]: a formula, see formula.py."""
        return self.baseline.log_us(workloads) + trees_answer * self.baseline.residual_scale(workloads)

    def predict_us(self, workloads: Array) -> Array:
        """Times in µs [rows] of workload vectors [rows, features]."""
        inputs = tree_inputs(workloads, OPERATORS[self.operator], self.candidate.inputs)
        answer = np.asarray(self.trees.predict(inputs), dtype=np.float64)
        # A power law far outside its samples may exceed the largest float.
        with np.errstate(over="ignore"):
            return np.exp(flat(self.log_us(workloads, answer[:, None]), len(workloads)))


def fit(candidate: Candidate, table: Table, seed: int) -> Regressor:
    """Fit baseline, then trees on the logarithm of measured time / baseline.

    Around a collective's baseline the trees learn in units of each layout's own spread, no farther than
    `_FARTHEST` of them: else they would spend their splits on the layout that is disturbed most.
    """
    baseline = fit_baseline(candidate.form, table.law, table.direction, table.workloads, table.times_us)
    residual = np.log(table.times_us) - baseline.predict_log(table.workloads)
    if isinstance(baseline, LatencyBandwidth):
        spreads = flat(baseline.residual_scale(table.workloads), len(table))
        residual = np.clip(residual / spreads, -_FARTHEST, _FARTHEST)
    trees = candidate.trees(seed)
    trees.fit(tree_inputs(table.workloads, table.law, candidate.inputs), residual)
    return Regressor(candidate=candidate, operator=table.operator, baseline=baseline, trees=trees)
