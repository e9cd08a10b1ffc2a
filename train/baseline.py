"""Baselines that trees correct: a constant, a power law, a roofline, or a collective's latency and bandwidth
(docs/method.md).

Trees alone are constant outside of the samples; a baseline follows the physics there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from kernelcast.runtime.operators import Direction, Operator, Term
from kernelcast.train.collective_baseline import fit_latency_bandwidth
from kernelcast.train.dataset import Array
from kernelcast.train.formula import Baseline, Column, Powers, monomial, weighted_sum

# Keeps a power law defined where a feature never varied in the samples.
_RIDGE = 1e-3
# Of the samples' traffic. A knee that is not needed gets the weight 0, so more than a device has do no harm. The
# spacing keeps noise between near sizes from becoming a slope.
_KNEE_QUANTILES = (1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6)
_KNEE_SPACING = 1.5
_KNEE_PENALTY = 0.1

Traffic = tuple[tuple[float, Powers], ...]
"""Elements moved, as (coefficient, exponent per feature) of each term."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant(Baseline):
    """log(time) = `mean_log_us`, so that the trees do everything ("raw" regressors)."""

    mean_log_us: float

    def log_us(self, workloads: Array) -> Column:
        return self.mean_log_us


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw(Baseline):
    """log(time) = `intercept` + Σ `exponents` · log(feature); a feature of 0 (no layer) counts as 1."""

    exponents: tuple[float, ...]
    intercept: float

    def log_us(self, workloads: Array) -> Column:
        return np.log(np.maximum(workloads, 1.0)) @ np.array(self.exponents)[:, None] + self.intercept


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline(Baseline):
    """time = `constant_us` + Σ `weights_us` · monomial + Σ `knee_weights_us` · max(0, traffic − `knees`).

    The monomials (`powers`) come from the operator's FLOPs and elements, each with its own rate, so that compute-bound
    and memory-bound workloads follow; the constant is the cost of a call. `traffic` is the number of elements moved:
    above a knee each takes longer, for instance beyond the size of a cache.
    """

    powers: tuple[Powers, ...]
    weights_us: tuple[float, ...]
    constant_us: float
    traffic: Traffic
    knees: tuple[float, ...]
    knee_weights_us: tuple[float, ...]

    def log_us(self, workloads: Array) -> Column:
        # Fitted weights are often 0, and need no node in a graph then.
        work = [
            (w, monomial(workloads, p)) for w, p in zip(self.weights_us, self.powers, strict=True) if w > 0
        ]
        total_us = self.constant_us + weighted_sum(work)
        knees = [(w, k) for w, k in zip(self.knee_weights_us, self.knees, strict=True) if w > 0]
        if knees:
            # Above a knee the difference of two large numbers counts: in units of the knee float32 is precise enough.
            shares = _moved(workloads, self.traffic) * np.array([[1 / knee for _, knee in knees]])
            weights_us = np.array([[weight * knee] for weight, knee in knees])
            total_us = total_us + np.maximum(shares - 1.0, 0.0) @ weights_us
        return np.log(total_us)


def fit_baseline(
    form: str, op: Operator, direction: Direction, workloads: Array, times_us: Array
) -> Baseline:
    """Fit the baseline called `form` ("raw", "power_law", "roofline" or "latency_bandwidth") to times in µs."""
    if form == "raw":
        return Constant(mean_log_us=float(np.log(times_us).mean()))
    if form == "power_law":
        return _fit_power_law(workloads, times_us)
    if form == "latency_bandwidth":
        return fit_latency_bandwidth(op, workloads, times_us)
    return _fit_roofline(op, direction, workloads, times_us)


def _fit_power_law(workloads: Array, times_us: Array) -> PowerLaw:
    logs, target = np.log(np.maximum(workloads, 1.0)), np.log(times_us)
    centre, mean = logs.mean(axis=0), target.mean()
    centred = logs - centre
    exponents = np.linalg.solve(
        centred.T @ centred + _RIDGE * np.eye(logs.shape[1]), centred.T @ (target - mean)
    )
    return PowerLaw(exponents=tuple(map(float, exponents)), intercept=float(mean - centre @ exponents))


def _fit_roofline(op: Operator, direction: Direction, workloads: Array, times_us: Array) -> Roofline:
    """Non-negative least squares on relative errors: workloads are equally weighted.

    Knees pay for their share of the longest time, so that they appear where they explain much, not where they follow
    noise: half of the time costs as much as one row that is off by 16 %.
    """
    powers = monomial_powers(op, direction)
    traffic = tuple((t.coefficient, _powers(t, tuple(op.features))) for t in op.costs[direction].elements)
    moved = _moved(workloads, traffic)
    knees = _knees(moved)
    columns = np.column_stack(
        [
            *(monomial(workloads, p) for p in powers),
            np.maximum(moved - np.array(knees), 0.0),
            np.ones(len(workloads)),
        ]
    )
    # A monomial is 0 throughout where one of its features is.
    scale = np.where(columns.max(axis=0) > 0, columns.max(axis=0), 1.0)
    penalties = np.zeros((len(knees), columns.shape[1]))
    penalties[:, len(powers) : -1] = np.eye(len(knees)) * _KNEE_PENALTY**0.5 / times_us.max()
    # scipy's own limit, three iterations per column, is too low for times that spread over many powers of ten.
    weights, _ = nnls(
        np.concatenate([columns / scale / times_us[:, None], penalties]),
        np.concatenate([np.ones(len(workloads)), np.zeros(len(knees))]),
        maxiter=100 * columns.shape[1],
    )
    *weights_us, constant_us = (float(weight) for weight in weights / scale)
    return Roofline(
        powers=powers,
        weights_us=tuple(weights_us[: len(powers)]),
        # Keeps the logarithm defined where all weights are 0.
        constant_us=max(constant_us, 1e-3 * float(times_us.min())),
        traffic=traffic,
        knees=knees,
        knee_weights_us=tuple(weights_us[len(powers) :]),
    )


def _knees(moved: Array) -> tuple[float, ...]:
    """Knees within the range of the traffic, apart from its ends and from each other by `_KNEE_SPACING`."""
    knees: list[float] = []
    lower = float(moved.min())
    for knee in map(float, np.quantile(moved, _KNEE_QUANTILES)):
        if knee > 0 and _KNEE_SPACING * lower <= knee <= float(moved.max()) / _KNEE_SPACING:
            knees.append(knee)
            lower = knee
    return tuple(knees)


def monomial_powers(op: Operator, direction: Direction) -> tuple[Powers, ...]:
    """Distinct monomials of an operator's FLOPs and elements, as exponents per feature.

    A feature that is in none of them has a monomial of its own: it counts calls (the layers of an optimizer step),
    or cannot be ruled out. Only of a collective the layout is left to the trees: it changes rates, not work.
    """
    cost, features = op.costs[direction], tuple(op.features)
    powers = dict.fromkeys(_powers(term, features) for term in (*cost.flops, *cost.elements))
    if not op.is_collective:
        unused = [name for column, name in enumerate(features) if not any(p[column] for p in powers)]
        powers |= dict.fromkeys(_powers(Term(1.0, (name,)), features) for name in unused)
    return tuple(powers)


def _powers(term: Term, features: Sequence[str]) -> Powers:
    return tuple(term.features.count(name) for name in features)


def _moved(workloads: Array, traffic: Traffic) -> Column:
    """Elements moved, [rows, 1]."""
    return weighted_sum((coefficient, monomial(workloads, powers)) for coefficient, powers in traffic)
