"""Errors outside of the training range, by distance: how much intervals must widen there.

The chosen candidate is fitted without the largest sizes, without each layout of a collective, without each role. The
excess of its errors there over the half-width inside gives the half-width per doubling of the distance (`Widening`).
The coverage of each part is computed with the half-width per doubling of the other parts.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernelcast.runtime.answers.sources import doublings_beyond, layout_doublings
from kernelcast.runtime.bundle.regressor_entry import LEVEL, PRIOR, HeldOut, Interval, Widening
from kernelcast.train.dataset import Array, MeasuredRange, Table
from kernelcast.train.intervals import log_errors, log_half_widths
from kernelcast.train.regressor import Regressor

# Largest parts that are held out, as shares of the rows.
_LARGEST_SHARES = (0.125, 0.25, 0.5, 0.75)
_FEWEST_VALUES = 4
_FEWEST_FITTED = 8
_FEWEST_TESTED = 5
# Distances of the table of coverage, in doublings.
_DISTANCES = (1.0, 2.0, 3.0, math.inf)
# Rows nearer than this, in doublings, do not determine a slope.
_NEAREST = 0.5

_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutPart:
    """Rows that a fit did not see: how far they lie outside, and what predictions were off by; [rows] each.

    `off` are |log(predicted / measured)|. The distance of a role is 1.
    """

    kind: str
    rows: npt.NDArray[np.int64]
    doublings: Array
    off: Array


def held_out_parts(
    table: Table, fit: Callable[[npt.NDArray[np.int64]], Regressor]
) -> tuple[HeldOutPart, ...]:
    """Hold out parts of a table and predict them by fits to the rest; `fit` takes row indices."""
    found = []
    for kind, tested in _parts(table):
        fitted = np.flatnonzero(~tested)
        if len(fitted) < _FEWEST_FITTED or tested.sum() < _FEWEST_TESTED:
            continue
        measured = MeasuredRange.of(table.part(fitted))
        rows = np.flatnonzero(tested)
        doublings = np.array(
            [_distance(kind, measured, tuple(row)) for row in table.workloads[rows].tolist()]
        )
        far = doublings >= _NEAREST
        rows, doublings = rows[far], doublings[far]
        if len(rows) < _FEWEST_TESTED:
            continue
        predicted_us = fit(fitted).predict_us(table.workloads[rows])
        off = log_errors(predicted_us, table.times_us[rows])
        found.append(HeldOutPart(kind=kind, rows=rows, doublings=doublings, off=off))
    return tuple(found)


def _parts(table: Table) -> Iterator[tuple[str, _Mask]]:
    """Kind and rows of every part that is held out."""
    law = table.law
    if law.is_elementwise:
        columns = [np.array([law.elements(row) for row in table.workloads.tolist()])]
    else:
        columns = list(table.workloads.T[: -2 if law.is_collective else None])
    seen = set()
    for values in columns:
        if len(np.unique(values)) < _FEWEST_VALUES:
            continue
        for share in _LARGEST_SHARES:
            largest = values > np.quantile(values, 1 - share, method="lower")
            # Features that move together have the same largest rows.
            if largest.tobytes() not in seen:
                seen.add(largest.tobytes())
                yield "size", largest
    if len(table.layouts) > 1:
        for layout in table.layouts:
            yield "layout", table.in_layout(layout)
    roles = [np.isfinite(times_us) for times_us in table.role_times_us.values()]
    if len(roles) > 1:
        for number, of_role in enumerate(roles):
            others = np.any([one for other, one in enumerate(roles) if other != number], axis=0)
            yield "role", of_role & ~others


def _distance(kind: str, measured: MeasuredRange, vector: tuple[float, ...]) -> float:
    if kind == "size":
        return doublings_beyond(measured, vector)
    if kind == "layout":
        return layout_doublings(measured, vector)
    # Rows of a role within the other roles' sizes show the effect of the role alone.
    return 0.0 if doublings_beyond(measured, vector) else 1.0


def widening_of(table: Table, interval: Interval, parts: Sequence[HeldOutPart]) -> Widening:
    """Half-widths per doubling that hold 90 % of the rows of every held-out part; `PRIOR` where there is none.

    Errors within a part are correlated, so the parts are the calibration set: the largest of n half-widths is exceeded
    with probability 1 / (n + 1) (split conformal prediction; Vovk et al., 2005).
    """
    outside = {part.rows.tobytes(): _outside(table, interval, part) for part in parts}
    slopes: dict[str, float] = {}
    held_out: list[HeldOut] = []
    for kind, prior in (
        ("size", PRIOR.size_per_doubling),
        ("layout", PRIOR.layout_per_doubling),
        ("role", PRIOR.new_role),
    ):
        own = [part for part in parts if part.kind == kind]
        ratios = [outside[part.rows.tobytes()] for part in own]
        # A single part may be lucky.
        slopes[kind] = _slope(ratios, prior) if len(own) != 1 else max(prior, _slope(ratios, prior))
        if len(own) > 1:
            held_out += _coverage(kind, own, ratios, prior)
    return Widening(
        size_per_doubling=slopes["size"],
        layout_per_doubling=slopes["layout"],
        new_role=slopes["role"],
        held_out=tuple(held_out),
    )


def _outside(table: Table, interval: Interval, part: HeldOutPart) -> Array:
    """Excess of each row's error over the half-width inside, per doubling, [rows]."""
    widths = log_half_widths(interval, table.workloads[part.rows])
    ratios: Array = (part.off - widths) / part.doublings
    return ratios


def _slope(ratios: Sequence[Array], prior: float) -> float:
    """The smallest half-width per doubling that holds 90 % of the rows of every part; 0 or more."""
    if not ratios:
        return prior
    return max(0.0, *(float(np.quantile(one, LEVEL, method="higher")) for one in ratios))


def _coverage(
    kind: str, parts: Sequence[HeldOutPart], ratios: Sequence[Array], prior: float
) -> Iterator[HeldOut]:
    """Share of held-out rows within their interval by distance, with the slope of the other parts."""
    doublings = np.concatenate([part.doublings for part in parts])
    inside = np.concatenate(
        [
            ratio <= _slope([other for place, other in enumerate(ratios) if place != number], prior)
            for number, ratio in enumerate(ratios)
        ]
    )
    low = 0.0
    for high in _DISTANCES:
        rows = (doublings > low) & (doublings <= high)
        if rows.any():
            yield HeldOut(kind=kind, doublings=high, rows=int(rows.sum()), inside=float(inside[rows].mean()))
        low = high
