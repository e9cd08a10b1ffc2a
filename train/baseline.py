"""What a regressor starts from before trees correct it: nothing, a power law, or a roofline (METHOD section 4).

Trees alone return the edge value outside the samples; a baseline keeps following the physics there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from kernelcast.runtime.operators import Direction, Operator, Term
from kernelcast.train.dataset import Array

# Keeps a power law defined where a feature never varied in the samples.
_RIDGE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """log(time) = `log_us`: the mean, so that the trees do everything ("raw" regressors)."""

    log_us: float

    def predict_log(self, workloads: Array) -> Array:
        """Logarithm of the time in µs, [rows]."""
        return np.full(len(workloads), self.log_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw:
    """log(time) = `log_us` + Σ `exponents` · log(feature)."""

    exponents: tuple[float, ...]
    log_us: float

    def predict_log(self, workloads: Array) -> Array:
        """Logarithm of the time in µs, [rows]."""
        log_us: Array = np.log(workloads) @ np.array(self.exponents) + self.log_us
        return log_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """time = `constant_us` + Σ `weights_us` · monomial; `powers` [monomials, features] are the monomials' exponents.

    The monomials are those of the operator's FLOPs and bytes, each with a rate of its own, so that a workload bound by
    either follows; the constant is the cost of a call.
    """

    powers: tuple[tuple[int, ...], ...]
    weights_us: tuple[float, ...]
    constant_us: float

    def predict_log(self, workloads: Array) -> Array:
        """Logarithm of the time in µs, [rows]."""
        log_us: Array = np.log(
            _monomials(workloads, self.powers) @ np.array(self.weights_us) + self.constant_us
        )
        return log_us


Baseline = Constant | PowerLaw | Roofline


def fit_baseline(
    form: str, op: Operator, direction: Direction, workloads: Array, times_us: Array
) -> Baseline:
    """Fit the baseline called `form` ("raw", "power_law" or "roofline") to times in µs."""
    if form == "raw":
        return Constant(log_us=float(np.log(times_us).mean()))
    if form == "power_law":
        return _fit_power_law(workloads, times_us)
    return _fit_roofline(op, direction, workloads, times_us)


def _fit_power_law(workloads: Array, times_us: Array) -> PowerLaw:
    logs, target = np.log(workloads), np.log(times_us)
    centre, mean = logs.mean(axis=0), target.mean()
    centred = logs - centre
    exponents = np.linalg.solve(
        centred.T @ centred + _RIDGE * np.eye(logs.shape[1]), centred.T @ (target - mean)
    )
    return PowerLaw(exponents=tuple(map(float, exponents)), log_us=float(mean - centre @ exponents))


def _fit_roofline(op: Operator, direction: Direction, workloads: Array, times_us: Array) -> Roofline:
    """Non-negative least squares on relative errors: every workload counts alike, whatever its size."""
    powers = monomial_powers(op, direction)
    columns = np.column_stack([_monomials(workloads, powers), np.ones(len(workloads))])
    scale = columns.max(axis=0)
    weights, _ = nnls(columns / scale / times_us[:, None], np.ones(len(workloads)))
    weights = weights / scale
    # A little of everything keeps the logarithm defined where nothing but the constant was left at zero.
    constant = max(float(weights[-1]), 1e-3 * float(times_us.min()))
    return Roofline(powers=powers, weights_us=tuple(map(float, weights[:-1])), constant_us=constant)


def monomial_powers(op: Operator, direction: Direction) -> tuple[tuple[int, ...], ...]:
    """Distinct monomials of an operator's FLOPs and elements, as exponents per feature."""
    cost = op.costs[direction]
    return tuple(dict.fromkeys(_powers(term, tuple(op.features)) for term in (*cost.flops, *cost.elements)))


def _powers(term: Term, features: Sequence[str]) -> tuple[int, ...]:
    return tuple(term.features.count(name) for name in features)


def _monomials(workloads: Array, powers: Sequence[Sequence[int]]) -> Array:
    products: Array = np.exp(np.log(workloads) @ np.array(powers, dtype=np.float64).T)
    return products
