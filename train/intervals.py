"""90 % intervals: from how far honest predictions of held-out rows were off (cross-conformal, on log error).

Every row of a table is predicted once by a fit that did not see it. The quantile of |log(predicted / measured)| over
them becomes the half-width of the interval on the logarithm. The coverage that is reported is honest too: the rows of
each fold count as covered or not by the half-width that the other four folds alone give.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import KFold

from kernelcast.runtime.bundle.regressor_entry import LEVEL, Interval
from kernelcast.train.dataset import Array, Table
from kernelcast.train.formula import Column, flat, product

FEWEST_CALIBRATED = 20
"""With fewer rows a 90 % quantile is the largest error or does not exist; nothing is promised then."""

_FOLDS = 5
_BEYOND_LARGEST = 1.5
# A group with fewer rows has too coarse a quantile of its own.
_FEWEST_IN_SIZE = 60
_FEWEST_IN_LAYOUT = 30
_SIZES = 3
# Groups must pay: by at least this share of the interval score.
_GAIN = 0.02
# Stands for the error of a held-out prediction that is not a finite number.
_LARGEST_LOG_ERROR = math.log(1e6)

_Groups = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """An interval and its coverage of held-out rows, a fraction; null with fewer than `FEWEST_CALIBRATED` rows."""

    interval: Interval
    coverage: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grouping:
    """One way to let half-widths differ. `groups` [rows]; the last of `count` groups may have no rows."""

    by: str
    size_bounds: tuple[float, ...] = ()
    layouts: tuple[tuple[int, int], ...] = ()
    groups: _Groups

    @property
    def count(self) -> int:
        return 1 + len(self.size_bounds) + len(self.layouts)


def calibrate(table: Table, held_out_us: Array, seed: int) -> Calibrated:
    """Interval of a table's regressor; `held_out_us` [rows] are the predictions of rows by fits without them.

    Half-widths may differ by size, or by layout where a collective has enough rows of it, when that makes intervals
    narrower at the same coverage (smaller interval score of Gneiting and Raftery, 2007, section 6.2, over held-out
    rows). With fewer than `FEWEST_CALIBRATED` rows the half-width is the largest error times 1.5.
    """
    off = log_errors(held_out_us, table.times_us)
    if len(table) < FEWEST_CALIBRATED:
        widest = _BEYOND_LARGEST * float(off.max())
        return Calibrated(interval=Interval.of_all(widest, method="largest_error"), coverage=None)
    folds = [held_out for _, held_out in KFold(_FOLDS, shuffle=True, random_state=seed).split(off)]
    best, best_widths = _groupings(table)[0], np.empty(0)
    best_score = math.inf
    for grouping in _groupings(table):
        widths = _held_out_widths(off, grouping, folds)
        score = float(np.mean(2 * widths + 2 / (1 - LEVEL) * np.maximum(off - widths, 0)))
        if score < (1 - _GAIN) * best_score:
            best, best_widths, best_score = grouping, widths, score
    return Calibrated(
        interval=Interval(
            method="cross_conformal",
            level=LEVEL,
            by=best.by,
            size_bounds=best.size_bounds,
            layouts=best.layouts,
            log_half_widths=tuple(map(float, _widths(off, best.groups, best.count))),
        ),
        coverage=float(np.mean(off <= best_widths)),
    )


def log_errors(predicted_us: Array, times_us: Array) -> Array:
    """|log(predicted / measured)|, [rows]; a large number where the prediction is not a finite one."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        off = np.abs(np.log(predicted_us / times_us))
    return np.nan_to_num(off, nan=_LARGEST_LOG_ERROR, posinf=_LARGEST_LOG_ERROR)


def log_half_width(interval: Interval, workloads: Column, features: int) -> Column:
    """Half-width that applies to each workload, [rows, 1] or a number: a formula, see formula.py."""
    *own, other = interval.log_half_widths
    if interval.by == "all":
        return other
    if interval.by == "size":
        # Group i lies above bound i − 1: each bound that is passed adds the step to the next group's half-width.
        above = 1.0 * (product(workloads, range(features)) > np.array([interval.size_bounds]))
        return above @ np.diff(interval.log_half_widths)[:, None] + interval.log_half_widths[0]
    nodes, gpus = np.array(interval.layouts, dtype=np.float32).T[:, None]
    in_layout = 1.0 * (workloads[:, [features - 2]] == nodes) * (workloads[:, [features - 1]] == gpus)
    return in_layout @ (np.array(own)[:, None] - other) + other


def log_half_widths(interval: Interval, workloads: Array) -> Array:
    """Half-width that applies to each workload, [rows]."""
    single = workloads.astype(np.float32)
    return flat(log_half_width(interval, single, single.shape[1]), len(single))


def _groupings(table: Table) -> list[_Grouping]:
    """Ways that have rows enough for each group, the plainest first."""
    found = [_Grouping(by="all", groups=np.zeros(len(table), dtype=np.int64))]
    # In float32 and in the order in which the exported graph multiplies.
    sizes = product(table.workloads.astype(np.float32), range(table.workloads.shape[1]))[:, 0]
    if len(table) >= _SIZES * _FEWEST_IN_SIZE:
        shares = [number / _SIZES for number in range(1, _SIZES)]
        bounds = np.unique(np.quantile(sizes, shares, method="lower").astype(np.float32))
        groups = np.searchsorted(bounds, sizes, side="left").astype(np.int64)
        # Many workloads may be of one size, and leave a group with few.
        if np.bincount(groups, minlength=_SIZES).min() >= _FEWEST_IN_SIZE // 2:
            found.append(_Grouping(by="size", size_bounds=tuple(map(float, bounds)), groups=groups))
    own = [layout for layout in table.layouts if table.in_layout(layout).sum() >= _FEWEST_IN_LAYOUT]
    if len(table.layouts) > 1 and own:
        groups = np.full(len(table), len(own), dtype=np.int64)
        for number, layout in enumerate(own):
            groups[table.in_layout(layout)] = number
        found.append(_Grouping(by="layout", layouts=tuple(own), groups=groups))
    return found


def _held_out_widths(off: Array, grouping: _Grouping, folds: Sequence[_Groups]) -> Array:
    """Half-width of each row from the rows outside its fold, [rows]."""
    widths = np.empty(len(off))
    for held_out in folds:
        others = np.ones(len(off), dtype=bool)
        others[held_out] = False
        by_group = _widths(off[others], grouping.groups[others], grouping.count)
        widths[held_out] = by_group[grouping.groups[held_out]]
    return widths


def _widths(off: Array, groups: _Groups, count: int) -> Array:
    """Half-width per group, [count]; the widest where a group has too few rows for a quantile of its own."""
    own = [conformal_quantile(off[groups == group]) for group in range(count)]
    widest = max((width for width in own if width is not None), default=float(off.max()))
    return np.array([widest if width is None else width for width in own])


def conformal_quantile(off: Array) -> float | None:
    """The ⌈(n + 1) · level⌉-th smallest of n errors, which a new one exceeds with at most 1 − level."""
    rank = math.ceil((len(off) + 1) * LEVEL)
    return float(np.sort(off)[rank - 1]) if rank <= len(off) else None
