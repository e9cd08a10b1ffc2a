"""Corrects a bundle by measured steps: one factor per class of operators, shrunk towards 1 (docs/calibration.md).

The logarithms of the factors have a normal prior around 0; log(measured / predicted) of a step is normal around the
value that the factors give. The residual spread is unknown and averaged over, weighted by the evidence of the steps
(Bishop, Pattern Recognition and Machine Learning, 2006, section 3.4): consistent steps move the factors, few or
contradicting ones hardly do. Factors multiply operators' times before these are added up, so that the maxima of a
pipeline and the simulation see them. The step's dependence on them is linearised repeatedly until the factors converge.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime import Estimator, UsageError
from kernelcast.runtime.bundle.calibration import CLASSES, LARGEST_FACTOR, Calibration, CalibrationRun
from kernelcast.runtime.bundle.file import Bundle, write_bundle
from kernelcast.runtime.bundle.manifest import UNKNOWN_MOMENT
from kernelcast.runtime.errors import error_context
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.operators import OPERATORS, OperatorClass
from kernelcast.runtime.request.field_types import whole
from kernelcast.runtime.request.fields import TimelineKind
from kernelcast.validate.calibration_steps import Configuration
from kernelcast.validate.reweighted import reweighted_step_s
from kernelcast.validate.runs import MeasuredRun

Array = NDArray[np.float64]

PRIOR = 0.05
"""Prior standard deviation of a class's log factor: sums of operators measured alone fell 4 to 6 % short of real steps
(docs/method.md)."""
RESIDUALS = tuple(0.05 * 2.0**power for power in range(-4, 2))
"""Candidates for the standard deviation of log(measured / predicted) that the factors leave: around 5 %, the mean error
of the paper's predictions (Zhang et al., arXiv 2509.22832, Table VIII), …"""
_RESIDUAL_WEIGHTS = tuple(np.exp(-0.5 * power**2) for power in range(-4, 2))
"""… with a normal prior on log2, standard deviation 1."""

GROUPS: dict[int, dict[OperatorClass, int]] = {
    1: dict.fromkeys(CLASSES, 0),
    2: {one: int(one is OperatorClass.COMMUNICATION) for one in CLASSES},
    3: {
        OperatorClass.COMPUTE: 0,
        OperatorClass.MEMORY: 1,
        OperatorClass.OPTIMIZER: 1,
        OperatorClass.COMMUNICATION: 2,
    },
    4: {one: index for index, one in enumerate(CLASSES)},
}
"""Classes that share a parameter: all; all but communication; memory-bound operators and the optimizer; none."""

_STEP = 1e-3  # of log factors, for derivatives
_ITERATIONS, _CONVERGED = 30, 1e-7
_DECIMALS = 9  # kept in the manifest: the last bits of linear algebra differ between machines


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Log factors [classes], their spread [classes, parameters], and the residual standard deviation."""

    log_factors: Array
    log_spread: Array
    residual: float


def predicted_steps(
    bundle: Bundle, runs: Sequence[MeasuredRun], timeline: TimelineKind
) -> tuple["PredictedStep", ...]:
    """What `bundle` predicts for measured steps; its own calibration, where it has one, is not used.

    UsageError, with the run, where a layout does not fit its model, or the step took more than `LARGEST_FACTOR` times
    as long as predicted or less than the reciprocal; DataError where the bundle lacks what a run needs.
    """
    estimator = Estimator(bundle, calibrated=False)
    return tuple(PredictedStep.of(estimator, run, timeline) for run in runs)


def calibrate(
    steps: Sequence["PredictedStep"],
    *,
    source: str,
    source_digest: str,
    parameters: int | None = None,
    measured_at: str = UNKNOWN_MOMENT,
) -> Calibration:
    """Fit the correction to steps of one timeline; its errors before, after, and by cross-validation.

    Cross-validation leaves out all steps of a configuration together. `source` and `source_digest` identify the steps.
    `parameters` defaults to `usual_parameters`. UsageError without steps.
    """
    if not steps:
        raise UsageError(f"{source}: has no measured steps, expected at least one")
    if parameters is None:
        parameters = usual_parameters(len({step.configuration for step in steps}))
    whole(1, len(CLASSES)).check("parameters", parameters)
    fitted = fit(steps, parameters)
    nothing = np.zeros(len(CLASSES))
    return Calibration(
        timeline=steps[0].estimate.timeline,
        source=source,
        source_digest=source_digest,
        measured_at=measured_at,
        kernelcast_version=version("kernelcast"),
        parameters=parameters,
        log_factors=tuple(_rounded(fitted.log_factors)),
        log_spread=tuple(tuple(_rounded(row)) for row in fitted.log_spread),
        residual=round(fitted.residual, _DECIMALS),
        prior=PRIOR,
        runs=tuple(
            CalibrationRun(
                label=step.run.label,
                measured_s=step.run.measured_s,
                error_before=round(step.error(nothing), _DECIMALS),
                error_left_out=None if error is None else round(error, _DECIMALS),
                error_after=round(step.error(fitted.log_factors), _DECIMALS),
            )
            for step, error in zip(steps, left_out_errors(steps, parameters), strict=True)
        ),
    )


def left_out_errors(steps: Sequence["PredictedStep"], parameters: int) -> tuple[float | None, ...]:
    """Cross-validated error of every step, corrected by other configurations' steps only; None without any."""
    configurations = dict.fromkeys(step.configuration for step in steps)
    if len(configurations) == 1:
        return (None,) * len(steps)
    log_factors = {
        one: fit([step for step in steps if step.configuration != one], parameters).log_factors
        for one in configurations
    }
    return tuple(step.error(log_factors[step.configuration]) for step in steps)


def usual_parameters(configurations: int) -> int:
    """One parameter per two configurations, at least 1, at most one per class: fixed by count, not chosen by errors."""
    return min(max(1, configurations // 2), len(CLASSES))


def write_calibrated(path: Path, bundle: Bundle, calibration: Calibration) -> str:
    """Write `bundle` with this calibration instead of its own, as `write_bundle`; models keep their bytes."""
    return write_bundle(path, replace(bundle.manifest, calibration=calibration), bundle.files)


def _class_of(operator: str) -> int:
    return CLASSES.index(OPERATORS[operator].operator_class)


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """A measured step and its prediction as a function of the classes' log factors."""

    run: MeasuredRun
    configuration: Configuration
    estimate: Estimate

    @classmethod
    def of(cls, estimator: Estimator, run: MeasuredRun, timeline: TimelineKind) -> "PredictedStep":
        with error_context(f"run {run.label}"):
            estimate = estimator.predict(**run.asked, timeline=timeline, interval=False)
        predicted_s = estimate.step_time_s
        if not run.measured_s / LARGEST_FACTOR <= predicted_s <= run.measured_s * LARGEST_FACTOR:
            raise UsageError(
                f"run {run.label}: measured_s is {run.measured_s:g}, but {predicted_s:.4g} s are predicted, expected "
                f"at most a factor of {LARGEST_FACTOR:g} between them (is it in seconds?)"
            )
        return cls(run, Configuration.of(run, estimator.bundle.manifest), estimate)

    def step_s(self, log_factors: Array) -> Array:
        """Time of the step, float64 [configurations], for log factors [configurations, classes]."""
        return reweighted_step_s(self.estimate, np.exp(log_factors), _class_of, self.estimate.parallelism)

    def error(self, log_factors: Array) -> float:
        """Predicted / measured - 1."""
        return float(self.step_s(log_factors[None])[0] / self.run.measured_s - 1)

    def linearised(self, log_factors: Array) -> tuple[float, Array]:
        """log(measured / predicted), and the derivative of the predicted logarithm by every class's [classes]."""
        moved = np.vstack([log_factors, log_factors + _STEP * np.eye(len(CLASSES))])
        logs = np.log(self.step_s(moved) / self.run.measured_s)
        return -float(logs[0]), (logs[1:] - logs[0]) / _STEP


def fit(steps: Sequence[PredictedStep], parameters: int) -> Fitted:
    """The posterior of the log factors: Gauss-Newton around the averaged mean until it converges."""
    groups = np.zeros((len(CLASSES), parameters))
    for index, one in enumerate(CLASSES):
        groups[index, GROUPS[parameters][one]] = 1.0
    values = np.zeros(parameters)
    largest = np.log(LARGEST_FACTOR) - _STEP
    for iteration in range(_ITERATIONS):
        rows = [step.linearised(groups @ values) for step in steps]
        slopes = np.array([slope for _, slope in rows]) @ groups
        # The targets of the linearised problem.
        wanted = np.array([left for left, _ in rows]) + slopes @ values
        mean, covariance, residual = _averaged(slopes, wanted)
        moved = np.clip(mean, -largest, largest) - values
        # Half steps later on: whole ones can oscillate between two pieces of a maximum.
        values = values + (moved if iteration < _ITERATIONS // 2 else moved / 2)
        if np.abs(moved).max() < _CONVERGED:
            break
    spread = np.linalg.cholesky(covariance)
    return Fitted(log_factors=groups @ values, log_spread=groups @ spread, residual=residual)


def _averaged(slopes: Array, wanted: Array) -> tuple[Array, Array, float]:
    """Mean and covariance of the parameters and the residual, averaged over `RESIDUALS` by their evidence."""
    count, parameters = slopes.shape
    explained = PRIOR**2 * slopes @ slopes.T
    logs, means, covariances = [], [], []
    for residual, weight in zip(RESIDUALS, _RESIDUAL_WEIGHTS, strict=True):
        inverse = np.linalg.inv(explained + residual**2 * np.eye(count))
        gain = PRIOR**2 * slopes.T @ inverse
        means.append(gain @ wanted)
        covariances.append(PRIOR**2 * np.eye(parameters) - gain @ (PRIOR**2 * slopes))
        _, log_determinant = np.linalg.slogdet(inverse)
        logs.append(np.log(weight) + (log_determinant - wanted @ inverse @ wanted) / 2)
    weights = np.exp(np.array(logs) - max(logs))
    weights /= weights.sum()
    mean: Array = np.einsum("r,rp->p", weights, np.array(means))
    deviations = np.array(means) - mean
    covariance = np.einsum(
        "r,rpq->pq", weights, np.array(covariances) + deviations[:, :, None] * deviations[:, None, :]
    )
    residual = float(np.sqrt(weights @ np.square(RESIDUALS)))
    return mean, (covariance + covariance.T) / 2, residual


def _rounded(values: Array) -> list[float]:
    # + 0.0: no negative zeros.
    return [float(round(float(value), _DECIMALS) + 0.0) for value in values]
