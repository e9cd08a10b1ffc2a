"""A regressor of one operator and direction: a baseline, and trees on what the baseline leaves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from sklearn.ensemble import RandomForestRegressor
from xgboost import XGBRegressor

from kernelcast.runtime.operators import OPERATORS
from kernelcast.train.baseline import Baseline, fit_baseline
from kernelcast.train.collective_baseline import LatencyBandwidth
from kernelcast.train.dataset import Array, Table
from kernelcast.train.features import tree_inputs

__all__ = ["Candidate", "Regressor", "Trees", "fit", "tree_inputs"]

# Neither library is typed; both have fit and predict.
Trees: TypeAlias = Any

# Of robust spreads: what lies farther off pulls no more than this. Collectives only; see `LatencyBandwidth`.
_FARTHEST = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to fit: algorithm ("random_forest" or "xgboost"), form of the baseline, hyperparameters of the trees.

    `inputs` is what the trees see (features.py); a `pooled` candidate is fitted on the rows of the operator's whole
    family (families.py), a `shared` one on those of the operator measured beside fewer others too (levels.py).
    """

    algorithm: str
    form: str
    hyperparameters: Mapping[str, int | float | str]
    inputs: str = "product"
    pooled: bool = False
    shared: bool = False

    @property
    def settings(self) -> dict[str, int | float | str]:
        """Everything beside algorithm and form, as plain values."""
        shared = {"shared": True} if self.shared else {}
        return {**self.hyperparameters, "inputs": self.inputs, "pooled": self.pooled, **shared}

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

    @property
    def tree_nodes(self) -> int:
        """Nodes of all trees: the size of the exported file, and the time to load it, follow them."""
        if isinstance(self.trees, XGBRegressor):
            return sum(text.count("\n") for text in self.trees.get_booster().get_dump())
        return sum(int(tree.tree_.node_count) for tree in getattr(self.trees, "estimators_", ()))

    def predict_us(self, workloads: Array) -> Array:
        """Times in µs [rows] of workload vectors [rows, features]."""
        residual = np.asarray(
            self.trees.predict(tree_inputs(workloads, self.candidate.inputs)), dtype=np.float64
        )
        if isinstance(self.baseline, LatencyBandwidth):
            residual = residual * self.baseline.residual_scale(workloads)
        # A power law far outside its samples may leave the numbers that there are.
        with np.errstate(over="ignore"):
            times_us: Array = np.exp(self.baseline.predict_log(workloads) + residual)
        return times_us


def fit(candidate: Candidate, table: Table, seed: int) -> Regressor:
    """Fit baseline, then trees on the logarithm of measured time / baseline.

    Around a collective's baseline the trees learn in units of each layout's own spread, no farther than
    `_FARTHEST` of them: else they would spend their splits on the layout that is disturbed most.
    """
    baseline = fit_baseline(
        candidate.form, OPERATORS[table.operator], table.direction, table.workloads, table.times_us
    )
    residual = np.log(table.times_us) - baseline.predict_log(table.workloads)
    if isinstance(baseline, LatencyBandwidth):
        spreads = baseline.residual_scale(table.workloads)
        residual = np.clip(residual / spreads, -_FARTHEST, _FARTHEST)
    trees = candidate.trees(seed)
    trees.fit(tree_inputs(table.workloads, candidate.inputs), residual)
    return Regressor(candidate=candidate, operator=table.operator, baseline=baseline, trees=trees)
