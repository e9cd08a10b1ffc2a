"""Chooses a candidate per operator and direction on held-out rows, and refits it on everything."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import KFold

from kernelcast.runtime.operators import OPERATORS, OperatorClass
from kernelcast.train.candidates import CANDIDATES, COLLECTIVE_CANDIDATES, applicable
from kernelcast.train.dataset import Array, Table
from kernelcast.train.extrapolation import largest_quarters
from kernelcast.train.families import leaves_open, pooled
from kernelcast.train.levels import scaled
from kernelcast.train.outliers import outliers
from kernelcast.train.regressor import Candidate, Regressor, fit

__all__ = ["CANDIDATES", "COLLECTIVE_CANDIDATES", "FEWEST_ROWS", "Selected", "relative_errors", "select"]

FEWEST_ROWS = 8
"""The choice then rests on fits of four rows or more, the reported error on fits of six: enough for a baseline."""
_SPLITS = 5
# Candidates whose errors are within so much of the best count as equal: then the one that extrapolates, then the
# smallest wins.
_EQUAL_ERROR = 1.05
_EQUAL_EXTRAPOLATION = 1.25
# What own rows may say against a family's regressor where they leave open which feature takes the time.
_EQUAL_POOLED = 1.25

_ROWS_FOR_MEDIAN = 30
# Errors below count as this large, so that a layout that is followed exactly does not decide alone.
_LEAST_ERROR = 1e-3
# What stands for the extrapolation error of a prediction that is no number.
_LARGEST_ERROR = 1e6

_Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The winner of one table, refitted on all rows.

    `held_out_us` [rows] is an honest prediction of each row of the table: made without it, by a candidate that was
    chosen without it. `validation_error` is the mean absolute relative error of those. `extrapolation_error` is the
    winner's on the largest quarter of each feature, fitted without it, on average over the features; None where no
    feature has enough values. `outliers` are numbers of rows that lie far outside the spread of the others, the
    farthest first; `relatives` the operators whose rows were fitted too.
    """

    table: Table
    regressor: Regressor
    validation_error: float
    held_out_us: Array
    extrapolation_error: float | None = None
    outliers: tuple[int, ...] = ()
    relatives: tuple[str, ...] = ()


def select(table: Table, seed: int, relatives: Sequence[Table] = (), base: Table | None = None) -> Selected:
    """Keep the best candidate of held-out rows, refitted on all of them; `relatives` are other operators' rows, `base`
    those of the same operator measured beside fewer others.

    The paper's 80/20 split, five times with seeded, disjoint 20 %, so that every row is held out once: with 20 rows,
    one split would leave the choice to four of them. The 20 % have no part in anything that predicts them: the choice
    among the candidates is made on the other 80 % alone, again by folds (so each candidate is fitted without every
    pair of folds), and the chosen one is fitted on those 80 %.

    Needs at least `FEWEST_ROWS` rows.
    """
    search = _Search(table=table, relatives=tuple(relatives), base=base, seed=seed)
    tried = search.tried()
    everything = np.arange(len(table))
    honest_us = np.empty(len(table))
    for number, held_out in enumerate(search.folds()):
        rest = np.setdiff1d(everything, held_out)
        chosen = search.choose(tried.candidates, tried.errors[:, number, rest], tried.sizes[:, number], rest)
        honest_us[held_out] = search.fit(chosen, rest).predict_us(table.workloads[held_out])
    # Every row has an error in each of the four choices that it was not held out of.
    best = search.choose(
        tried.candidates, np.nanmean(tried.errors, axis=1), tried.sizes.max(axis=1), everything
    )
    return Selected(
        table=table,
        regressor=search.fit(best, everything),
        validation_error=float(np.mean(relative_errors(honest_us, table.times_us))),
        held_out_us=honest_us,
        extrapolation_error=search.extrapolation_error(best, everything),
        outliers=outliers(table, honest_us),
        relatives=tuple(other.operator for other in relatives) if best.pooled else (),
    )


def relative_errors(predicted_us: Array, times_us: Array) -> Array:
    """|predicted − measured| / measured, [.., rows]; infinite where the prediction is no number."""
    errors: Array = np.abs(predicted_us / times_us - 1)
    return np.nan_to_num(errors, nan=np.inf, posinf=np.inf)


def typical_errors(table: Table, errors: Array) -> Array:
    """What candidates are compared by, [candidates], from their `errors` [candidates, rows]: the mean.

    Of a collective the geometric mean over its layouts, so that each counts alike however disturbed it was; and of a
    layout with rows enough the median, so that the bulk decides, not the outliers.
    """
    if OPERATORS[table.operator].operator_class is not OperatorClass.COMMUNICATION:
        return np.asarray(errors.mean(axis=1))
    logs = np.zeros(len(errors))
    layouts = np.unique(table.workloads[:, 1:], axis=0)
    for layout in layouts:
        own = errors[:, (table.workloads[:, 1:] == layout).all(axis=1)]
        typical = np.median(own, axis=1) if own.shape[1] >= _ROWS_FOR_MEDIAN else own.mean(axis=1)
        logs += np.log(np.maximum(typical, _LEAST_ERROR))
    return np.asarray(np.exp(logs / len(layouts)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """What the candidates did: `errors` [candidates, folds, rows], without that fold and the row's own; NaN for rows
    of that fold. `sizes` [candidates, folds] are numbers of tree nodes, without that fold.
    """

    candidates: Sequence[Candidate]
    errors: Array
    sizes: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """The search among candidates for one table."""

    table: Table
    relatives: tuple[Table, ...]
    base: Table | None
    seed: int

    def folds(self) -> list[_Rows]:
        """Five disjoint parts of the rows."""
        splitter = KFold(_SPLITS, shuffle=True, random_state=self.seed)
        return [held_out for _, held_out in splitter.split(self.table.workloads)]

    def fit(self, candidate: Candidate, rows: _Rows) -> Regressor:
        """The candidate on some rows of the table, on the relatives' if it is a pooled one, and on the base's."""
        part = _part(self.table, rows)
        others = [*self.relatives] if candidate.pooled else []
        if candidate.shared and self.base is not None:
            unseen = np.delete(self.table.workloads, rows, axis=0)
            lower = scaled(self.base, part, unseen=unseen)
            others += [] if lower is None else [lower]
        return fit(candidate, pooled(part, others) if others else part, self.seed)

    def tried(self) -> _Tried:
        """Fit every candidate without every pair of folds."""
        table, folds = self.table, self.folds()
        candidates = applicable(CANDIDATES, COLLECTIVE_CANDIDATES, table, self.relatives)
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
        return _Tried(candidates=candidates, errors=errors, sizes=sizes)

    def choose(self, candidates: Sequence[Candidate], errors: Array, sizes: Array, rows: _Rows) -> Candidate:
        """The winner.

        `errors` is [candidates, rows], of these `rows` of the table; `sizes` [candidates] are numbers of tree nodes.
        """
        means = typical_errors(_part(self.table, rows), errors)
        equal = [n for n, mean in enumerate(means) if mean <= _EQUAL_ERROR * means.min()]
        if leaves_open(_part(self.table, rows), self.relatives):
            pooled_ones = [n for n, candidate in enumerate(candidates) if candidate.pooled]
            equal = [n for n in pooled_ones if means[n] <= _EQUAL_POOLED * means.min()] or equal
        if len(equal) == 1:
            return candidates[equal[0]]
        beyond = [self.extrapolation_error(candidates[number], rows) for number in equal]
        limit = _EQUAL_EXTRAPOLATION * min((e for e in beyond if e is not None), default=_LARGEST_ERROR)
        kept = [n for n, error in zip(equal, beyond, strict=True) if error is None or error <= limit]
        best = min(kept, key=lambda number: (sizes[number], means[number]))
        return candidates[best]

    def extrapolation_error(self, candidate: Candidate, rows: _Rows) -> float | None:
        """Mean error on the largest quarter by each feature, fitted without it; None where no feature has one."""
        workloads, times_us = self.table.workloads[rows], self.table.times_us[rows]
        errors: list[float] = []
        for quarter in largest_quarters(workloads):
            predicted_us = self.fit(candidate, rows[~quarter.rows]).predict_us(workloads[quarter.rows])
            error = float(np.mean(relative_errors(predicted_us, times_us[quarter.rows])))
            errors += [error] * len(quarter.features)
        return min(float(np.mean(errors)), _LARGEST_ERROR) if errors else None


def _part(table: Table, rows: _Rows) -> Table:
    return Table(
        operator=table.operator,
        direction=table.direction,
        workloads=table.workloads[rows],
        times_us=table.times_us[rows],
        processes_per_node=table.processes_per_node,
    )
