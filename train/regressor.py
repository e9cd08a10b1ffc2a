"""A regressor of one operator and direction: a baseline, and trees on its residual; and the candidates for one.

The search among candidates is small: its size depends on the rows alone.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from sklearn.ensemble import RandomForestRegressor
from xgboost import XGBRegressor

from kernelcast.runtime.operators import OPERATORS, Direction, Operator, OperatorClass
from kernelcast.train.baseline import fit_baseline
from kernelcast.train.collective_baseline import LatencyBandwidth
from kernelcast.train.dataset import Array, Table
from kernelcast.train.formula import Baseline, Column, flat, tree_inputs

# Neither library is typed; both have fit and predict.
Trees: TypeAlias = Any

# In robust spreads: larger residuals are cut to it. Collectives only; see `LatencyBandwidth`.
_FARTHEST = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to fit: algorithm ("random_forest" or "xgboost"), form of the baseline, hyperparameters of the trees.

    `inputs` names the input columns of the trees (`input_columns`). A `shared` candidate is fitted also on rows of the
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


RICH_ROWS = 100
"""From this number of rows on, the larger candidates are tried. With fewer rows neither they nor more trees
(`_with_fewer_trees`) help: 46 CPU tables of 15 to 26 rows have 6.3 % error either way, in less than half the time, and
15 of the authors' tables cut to 60 rows 4.7 instead of 4.8 %."""
_FASTEST_RATE = 0.3
SEARCH_BUDGET = 5e8
"""Rows × trees × depth, over all candidates of a table: about two minutes of one core of 2020. The limit is no clock,
so that the same rows give the same choice on every machine; candidates beyond it are not tried."""

_TABLE = Path(__file__).with_name("candidates.toml")


class Candidates(NamedTuple):
    """What is tried: for every operator (for collectives with few rows too, whose caches knees may explain), and for
    collectives alone.
    """

    every: Sequence[Candidate]
    collective: Sequence[Candidate]


@cache
def all_candidates() -> Candidates:
    """The rows of candidates.toml, in its order."""
    table = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    trees = {
        name: table["trees"][own.pop("like")] | own if "like" in own else own
        for name, own in table["trees"].items()
    }
    found = (
        [
            Candidate(**{**row, "form": form, "hyperparameters": trees[row["hyperparameters"]]})
            for row in table[kind]
            for form in row["form"]
        ]
        for kind in Candidates._fields
    )
    return Candidates(*map(tuple, found))


def applicable(candidates: Candidates, table: Table) -> list[Candidate]:
    """The candidates that a table of these rows tries."""
    rich = len(table) >= RICH_ROWS
    unsuited = "shapes" if _multiplies_matrices(table.law, table.direction) else "tiles"
    suited = [c for c in candidates.every if c.inputs != unsuited]
    if table.law.is_collective:
        # Rich collectives have several layouts, which only their own candidates can follow. The paper's stay.
        suited = [c for c in suited if c.form == "raw" or not rich] + list(candidates.collective)
    kept: list[Candidate] = []
    left = SEARCH_BUDGET
    for one in suited:
        if not rich and _is_for_many_rows(one):
            continue
        candidate = one if rich else _with_fewer_trees(one)
        left -= _work(candidate) * len(table)
        if left >= 0 or not kept:
            kept.append(candidate)
    return kept


def _multiplies_matrices(op: Operator, direction: Direction) -> bool:
    """Whether the FLOPs are multiples of the product of all features, as in matrix products."""
    return op.operator_class is OperatorClass.COMPUTE and all(
        sorted(term.features) == sorted(op.features) for term in op.costs[direction].flops
    )


def _is_for_many_rows(candidate: Candidate) -> bool:
    # A forest on a power law takes as long as any, and is hardly ever chosen with few rows.
    slow = candidate.algorithm == "random_forest" and candidate.form == "power_law"
    return slow or candidate.inputs != "product"


def _with_fewer_trees(candidate: Candidate) -> Candidate:
    """The same with a quarter of the forest's trees, or a third of the boosted ones at thrice their rate.

    A fit on two dozen rows takes time in proportion to its trees, and a choice takes hundreds of fits.
    """
    settings = candidate.hyperparameters
    if candidate.algorithm == "random_forest":
        return replace(
            candidate, hyperparameters={**settings, "n_estimators": int(settings["n_estimators"]) // 4}
        )
    if candidate.algorithm != "xgboost":
        return candidate
    rate = min(3 * float(settings["learning_rate"]), _FASTEST_RATE)
    fewer = {"n_estimators": int(settings["n_estimators"]) // 3, "learning_rate": rate}
    return replace(candidate, hyperparameters={**settings, **fewer})


def _work(candidate: Candidate) -> float:
    trees = candidate.hyperparameters
    return float(trees.get("n_estimators", 1)) * float(trees.get("max_depth", 1))
