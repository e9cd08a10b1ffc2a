"""Chooses a candidate per operator and direction on held-out rows, and refits it on everything."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import KFold

from kernelcast.train.dataset import Array, Table
from kernelcast.train.distances import HeldOutPart, held_out_parts
from kernelcast.train.levels import with_level_below
from kernelcast.train.notes import constant_times, outliers
from kernelcast.train.regressor import Candidate, Regressor, all_candidates, applicable, fit

FEWEST_ROWS = 8
"""The choice then uses fits of four rows or more, the reported error fits of six: enough for a baseline."""
FEWEST_VALUES = 4
"""A feature with fewer distinct values has no largest quarter."""
_SPLITS = 5
# Candidates with errors this close to the best count as equal; then the better extrapolation, the smaller size and the
# smaller error decide, in this order.
_EQUAL_ERROR = 1.05
_EQUAL_EXTRAPOLATION = 1.25
_EQUAL_SIZE = 1.1
_LARGEST_SHARE = 0.25

_ROWS_FOR_MEDIAN = 30
# Errors below count as this large, so that a layout that is followed exactly does not decide alone.
_LEAST_ERROR = 1e-3
# Stands for the extrapolation error of a prediction that is not a finite number.
_LARGEST_ERROR = 1e6

_Rows = npt.NDArray[np.int64]


def why_unfit(table: Table) -> str:
    """Why a table gets no regressor; empty if it gets one."""
    level = f" with {table.processes_per_node} processes per node" if table.processes_per_node > 1 else ""
    if len(table) < FEWEST_ROWS:
        return f"{len(table)} distinct workloads{level}, expected {FEWEST_ROWS} or more"
    return constant_times(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The winner of one table, refitted on all rows.

    `held_out_us` [rows] are predictions by nested cross-validation. `validation_error` is their mean absolute relative
    error, `role_errors` the same per role, against the times measured in it. `extrapolation_error` is the winner's
    error on the largest quarter of each feature, fitted without it: the mean over the features, None where no feature
    has enough values. `outliers` are numbers of rows far outside the spread of the other errors, the farthest first;
    `held_out_parts` the winner's errors outside of its training range.
    """

    table: Table
    regressor: Regressor
    validation_error: float
    held_out_us: Array
    role_errors: Mapping[str, float] = field(default_factory=dict)
    extrapolation_error: float | None = None
    outliers: tuple[int, ...] = ()
    held_out_parts: tuple[HeldOutPart, ...] = ()


def select(table: Table, seed: int, base: Table | None = None) -> Selected:
    """Choose the best candidate by nested cross-validation, and refit it on all rows.

    `base` is the same operator measured with fewer processes per node. The outer loop is the paper's 80/20 split, five
    times with disjoint, seeded 20 %, so that every row is held out once. The inner loop chooses among the candidates on
    the 80 % alone, by the same folds: each candidate is fitted without every pair of folds.

    Needs at least `FEWEST_ROWS` rows.
    """
    search = _Search(table=table, base=base, seed=seed)
    candidates, errors, sizes = search.tried()
    everything = np.arange(len(table))
    held_out_us = np.empty(len(table))
    for number, held_out in enumerate(search.folds()):
        rest = np.setdiff1d(everything, held_out)
        chosen = search.choose(candidates, errors[:, number, rest], sizes[:, number], rest)
        held_out_us[held_out] = search.fit(chosen, rest).predict_us(table.workloads[held_out])
    # Every row has an error in each of the four choices that it was not held out of.
    best = search.choose(candidates, np.nanmean(errors, axis=1), sizes.max(axis=1), everything)
    return Selected(
        table=table,
        regressor=search.fit(best, everything),
        validation_error=float(np.mean(relative_errors(held_out_us, table.times_us))),
        held_out_us=held_out_us,
        role_errors={
            role: float(np.mean(relative_errors(held_out_us[measured], times_us[measured])))
            for role, times_us in table.role_times_us.items()
            if (measured := np.isfinite(times_us)).any()
        },
        extrapolation_error=search.extrapolation_error(best, everything),
        outliers=outliers(table, held_out_us),
        held_out_parts=held_out_parts(table, lambda rows: search.fit(best, rows)),
    )


def relative_errors(predicted_us: Array, times_us: Array) -> Array:
    """|predicted − measured| / measured, [.., rows]; infinite where the prediction is not a number."""
    errors: Array = np.abs(predicted_us / times_us - 1)
    return np.nan_to_num(errors, nan=np.inf, posinf=np.inf)


def typical_errors(table: Table, errors: Array) -> Array:
    """The errors that candidates are compared by, [candidates], from `errors` [candidates, rows]: the mean.

    For a collective it is the geometric mean over layouts and roles, so that each counts the same however disturbed it
    was, and with enough rows of the median, so that outliers do not decide.
    """
    if not table.layouts:
        return np.asarray(errors.mean(axis=1))
    in_roles = [np.isfinite(times_us) for times_us in (table.role_times_us or {"": table.times_us}).values()]
    groups = [table.in_layout(layout) & in_role for layout in table.layouts for in_role in in_roles]
    logs = []
    for own in (errors[:, group] for group in groups if group.any()):
        typical = np.median(own, axis=1) if own.shape[1] >= _ROWS_FOR_MEDIAN else own.mean(axis=1)
        logs.append(np.log(np.maximum(typical, _LEAST_ERROR)))
    return np.asarray(np.exp(np.mean(logs, axis=0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarter:
    """Rows [rows] whose values of `features` (numbers; several where they move together) are the largest."""

    features: tuple[int, ...]
    rows: npt.NDArray[np.bool_]


def largest_quarters(workloads: Array) -> tuple[Quarter, ...]:
    """The largest quarter by each feature that has enough values; at least one row is in it and one is not."""
    found: dict[bytes, Quarter] = {}
    for feature, values in enumerate(workloads.T):
        if len(np.unique(values)) < FEWEST_VALUES:
            continue
        rows = values > np.quantile(values, 1 - _LARGEST_SHARE, method="lower")
        if not rows.any():  # more than a quarter have the largest value
            rows = values == values.max()
        known = found.get(rows.tobytes())
        found[rows.tobytes()] = Quarter(features=(*(known.features if known else ()), feature), rows=rows)
    return tuple(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """The search among candidates for one table."""

    table: Table
    base: Table | None
    seed: int

    def folds(self) -> list[_Rows]:
        splitter = KFold(_SPLITS, shuffle=True, random_state=self.seed)
        return [held_out for _, held_out in splitter.split(self.table.workloads)]

    def fit(self, candidate: Candidate, rows: _Rows) -> Regressor:
        """The candidate on some rows of the table, and on the base's if it is a shared one."""
        part = self.table.part(rows)
        if candidate.shared and self.base is not None:
            part = with_level_below(part, self.base, unseen=np.delete(self.table.workloads, rows, axis=0))
        return fit(candidate, part, self.seed)

    def tried(self) -> tuple[Sequence[Candidate], Array, Array]:
        """Fit every candidate without every pair of folds: the candidates, their errors, their sizes.

        Errors [candidates, folds, rows] are without that fold and the row's own, NaN for rows of that fold. Sizes
        [candidates, folds] are numbers of tree nodes without that fold.
        """
        table, folds = self.table, self.folds()
        candidates = applicable(all_candidates(), table)
        if self.base is not None:
            candidates += [replace(candidate, shared=True) for candidate in candidates]
        errors = np.full((len(candidates), _SPLITS, len(table)), np.nan)
        sizes = np.zeros((len(candidates), _SPLITS))
        for number, candidate in enumerate(candidates):
            for one, two in combinations(range(_SPLITS), 2):
                rest = np.setdiff1d(np.arange(len(table)), np.concatenate([folds[one], folds[two]]))
                regressor = self.fit(candidate, rest)
                nodes = regressor.tree_nodes
                for without, held_out in ((one, folds[two]), (two, folds[one])):
                    sizes[number, without] = max(sizes[number, without], nodes)
                    predicted_us = regressor.predict_us(table.workloads[held_out])
                    errors[number, without, held_out] = relative_errors(
                        predicted_us, table.times_us[held_out]
                    )
        return candidates, errors, sizes

    def choose(self, candidates: Sequence[Candidate], errors: Array, sizes: Array, rows: _Rows) -> Candidate:
        """The winner.

        `errors` is [candidates, rows], of these `rows` of the table; `sizes` [candidates] are numbers of tree nodes.
        """
        means = typical_errors(self.table.part(rows), errors)
        equal = [n for n, mean in enumerate(means) if mean <= _EQUAL_ERROR * means.min()]
        if len(equal) == 1:
            return candidates[equal[0]]
        beyond = [self.extrapolation_error(candidates[number], rows) for number in equal]
        limit = _EQUAL_EXTRAPOLATION * min((e for e in beyond if e is not None), default=_LARGEST_ERROR)
        kept = [n for n, error in zip(equal, beyond, strict=True) if error is None or error <= limit]
        small = [n for n in kept if sizes[n] <= _EQUAL_SIZE * min(sizes[k] for k in kept)]
        return candidates[min(small, key=lambda number: (means[number], sizes[number]))]

    def extrapolation_error(self, candidate: Candidate, rows: _Rows) -> float | None:
        """Mean error on the largest quarter by each feature, fitted without it; None where no feature has one."""
        workloads, times_us = self.table.workloads[rows], self.table.times_us[rows]
        errors: list[float] = []
        for quarter in largest_quarters(workloads):
            predicted_us = self.fit(candidate, rows[~quarter.rows]).predict_us(workloads[quarter.rows])
            error = float(np.mean(relative_errors(predicted_us, times_us[quarter.rows])))
            errors += [error] * len(quarter.features)
        return min(float(np.mean(errors)), _LARGEST_ERROR) if errors else None
