"""What a regressor starts from before trees correct it: nothing, a power law, a roofline, or a collective's latency
and bandwidth (docs/method.md).

Trees alone return the edge value outside the samples; a baseline keeps following the physics there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from kernelcast.runtime.operators import Direction, Operator, OperatorClass, Term
from kernelcast.train.collective_baseline import LatencyBandwidth, fit_latency_bandwidth
from kernelcast.train.dataset import Array

# Keeps a power law defined where a feature never varied in the samples.
_RIDGE = 1e-3
# Of the samples' traffic. A knee that is not needed gets the weight 0, so more than a device has do no harm. The
# spacing keeps noise between near sizes from becoming a slope.
_KNEE_QUANTILES = (1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6)
_KNEE_SPACING = 1.5
_KNEE_PENALTY = 0.1

Powers = tuple[int, ...]
"""Exponent per feature of one monomial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """log(time) = `log_us`: the mean, so that the trees do everything ("raw" regressors)."""

    log_us: float

    def predict_log(self, workloads: Array) -> Array:
        """Logarithm of the time in µs, [rows]."""
        return np.full(len(workloads), self.log_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw:
    """log(time) = `log_us` + Σ `exponents` · log(feature); a feature of 0 (no layer) counts as 1."""

    exponents: tuple[float, ...]
    log_us: float

    def predict_log(self, workloads: Array) -> Array:
        """Logarithm of the time in µs, [rows]."""
        log_us: Array = _logs(workloads) @ np.array(self.exponents) + self.log_us
        return log_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """time = `constant_us` + Σ `weights_us` · monomial + Σ `knee_weights_us` · max(0, traffic − `knees`).

    The monomials (`powers`) are those of the operator's FLOPs and elements, each with a rate of its own, so that a
    workload bound by either follows; the constant is the cost of a call. `traffic`, (coefficient, powers) of each
    term, is the number of elements moved: above a knee each of them takes longer, as where a cache is full.
    """

    powers: tuple[Powers, ...]
    weights_us: tuple[float, ...]
    constant_us: float
    traffic: tuple[tuple[float, Powers], ...]
    knees: tuple[float, ...]
    knee_weights_us: tuple[float, ...]

    def predict_log(self, workloads: Array) -> Array:
        """Logarithm of the time in µs, [rows]."""
        above = _above(workloads, self.traffic, self.knees)
        times_us = _monomials(workloads, self.powers) @ np.array(self.weights_us)
        log_us: Array = np.log(times_us + above @ np.array(self.knee_weights_us) + self.constant_us)
        return log_us


Baseline = Constant | PowerLaw | Roofline | LatencyBandwidth


def fit_baseline(
    form: str, op: Operator, direction: Direction, workloads: Array, times_us: Array
) -> Baseline:
    """Fit the baseline called `form` ("raw", "power_law", "roofline" or "latency_bandwidth") to times in µs."""
    if form == "raw":
        return Constant(log_us=float(np.log(times_us).mean()))
    if form == "power_law":
        return _fit_power_law(workloads, times_us)
    if form == "latency_bandwidth":
        return fit_latency_bandwidth(op.collective, workloads, times_us)
    return _fit_roofline(op, direction, workloads, times_us)


def _fit_power_law(workloads: Array, times_us: Array) -> PowerLaw:
    logs, target = _logs(workloads), np.log(times_us)
    centre, mean = logs.mean(axis=0), target.mean()
    centred = logs - centre
    exponents = np.linalg.solve(
        centred.T @ centred + _RIDGE * np.eye(logs.shape[1]), centred.T @ (target - mean)
    )
    return PowerLaw(exponents=tuple(map(float, exponents)), log_us=float(mean - centre @ exponents))


def _fit_roofline(op: Operator, direction: Direction, workloads: Array, times_us: Array) -> Roofline:
    """Non-negative least squares on relative errors: every workload counts alike, whatever its size.

    Knees pay for their share of the longest time, so that they appear where they explain much, not where they follow
    noise: half of the time costs as much as one row that is off by 16 %.
    """
    powers, traffic = monomial_powers(op, direction), _traffic(op, direction)
    knees = _knees(_moved(workloads, traffic))
    columns = np.column_stack(
        [_monomials(workloads, powers), _above(workloads, traffic, knees), np.ones(len(workloads))]
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
        # A little of everything keeps the logarithm defined where nothing but the constant was left at zero.
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
    if op.operator_class is not OperatorClass.COMMUNICATION:
        unused = [name for column, name in enumerate(features) if not any(p[column] for p in powers)]
        powers |= dict.fromkeys(_powers(Term(1.0, (name,)), features) for name in unused)
    return tuple(powers)


def _traffic(op: Operator, direction: Direction) -> tuple[tuple[float, Powers], ...]:
    features = tuple(op.features)
    return tuple((term.coefficient, _powers(term, features)) for term in op.costs[direction].elements)


def _powers(term: Term, features: Sequence[str]) -> Powers:
    return tuple(term.features.count(name) for name in features)


def _monomials(workloads: Array, powers: Sequence[Powers]) -> Array:
    products: Array = np.prod(workloads[:, None, :] ** np.array(powers), axis=2)
    return products


def _moved(workloads: Array, traffic: Sequence[tuple[float, Powers]]) -> Array:
    coefficients = np.array([coefficient for coefficient, _ in traffic])
    moved: Array = _monomials(workloads, [powers for _, powers in traffic]) @ coefficients
    return moved


def _above(workloads: Array, traffic: Sequence[tuple[float, Powers]], knees: Sequence[float]) -> Array:
    """Elements moved beyond each knee, [rows, knees]."""
    beyond: Array = np.maximum(_moved(workloads, traffic)[:, None] - np.array(knees), 0.0)
    return beyond


def _logs(workloads: Array) -> Array:
    logs: Array = np.log(np.maximum(workloads, 1.0))
    return logs
