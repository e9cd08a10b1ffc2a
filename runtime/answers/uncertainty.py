"""How sure a step's time is: random operator times drawn from the regressors' intervals (docs/method.md)."""

import math
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.answers.asking import OperatorTimes, Question
from kernelcast.runtime.answers.step_errors import StepErrors
from kernelcast.runtime.bundle.calibration import Factors
from kernelcast.runtime.operators import Direction, Key
from kernelcast.runtime.request.fields import TimelineKind

DRAWS_CLOSED_FORM = 256
DRAWS_SIMULATED = 64
"""A simulation takes longer per draw."""
FEWEST_DRAWS = 16
_SIMULATED_CHUNKS = 8192
"""Chunks of all draws together, beyond which a simulation gets fewer draws."""
SEED = 20250922
LOW, HIGH = 0.05, 0.95
STEP_LOG_SPREAD = 0.080
"""Standard deviation of log(measured step / sum of operators) where no such step is known, as on CPUs: root mean square
of the errors that the method's authors published for their ten steps (arXiv 2509.22832; docs/trust.md, A step)."""
OWN_SHARE = 0.5
"""Of the spread that operators' intervals give log(step), where errors of measured steps join it, which have it too."""
_RESIDUAL: Key = ("calibration residual", Direction.ONCE)
_SPREAD = NormalDist().inv_cdf(HIGH)
"""Standard deviations between the median and the 95th percentile of a normal distribution."""


def draws_for(timeline: TimelineKind, chunks: int) -> int:
    """How many random draws an interval is made from: fewer for the simulation, and for many chunks."""
    if timeline == "closed-form":
        return DRAWS_CLOSED_FORM
    return min(DRAWS_SIMULATED, max(FEWEST_DRAWS, _SIMULATED_CHUNKS // chunks))


def drawn_times(
    times: OperatorTimes,
    questions: Sequence[Question],
    draws: int,
    factors: Factors | None = None,
) -> NDArray[np.float64]:
    """Times of questions in µs, float64 [questions, 1 + draws]: the predicted one, then random ones.

    A random time is log-normal on either side of the predicted one, which is its median; its 5th and 95th percentile
    are the ends of the interval, which differ in distance where a device's peak cuts one off. A regressor's errors are
    taken as one: in a draw, all that it answers is as much too high or too low. The numbers are the same whenever they
    are drawn. What `factors` leave open moves all operators together that share a factor.
    """
    answers = np.array([times.answers[one] for one in questions], dtype=np.float64).reshape(-1, 3)
    found = np.empty((len(questions), 1 + draws))
    found[:, 0] = answers[:, 0]
    if draws and len(questions):
        median, low, high = np.log(answers.T)[:, :, None]
        normal = np.stack([_normal(times.sources[one], draws) for one in questions])
        found[:, 1:] = np.exp(median + np.where(normal < 0, median - low, high - median) / _SPREAD * normal)
        if factors is not None:
            spreads = (tuple(factors.log_spread_of(name)) for (name, _), _, _ in questions)
            found[:, 1:] *= np.stack([drawn_factors(spread, draws) for spread in spreads])
    return found


def unexplained(
    factors: Factors | None,
    draws: int,
    errors: StepErrors,
    kind: str = "",
    devices: str = "",
    *,
    is_carried: bool = False,
) -> NDArray[np.float64]:
    """Random factors of a whole step, float64 [draws]: what sums of operators get wrong.

    With factors, what the measured steps kept after the correction, more where they are carried to another device;
    without, the `errors` of steps that were measured elsewhere, first of the same `kind` and on such `devices`, or a
    prior where there are none, `STEP_LOG_SPREAD`.
    """
    residual = None if factors is None else factors.residual
    if residual is None and errors.sources:
        return _drawn_errors(errors, kind, devices, draws)
    spread = STEP_LOG_SPREAD if residual is None else residual
    if is_carried:
        spread = math.hypot(spread, errors.carried_spread)
    found: NDArray[np.float64] = np.exp(spread * _normal(_RESIDUAL, draws))
    return found


def around(
    time: float, drawn: NDArray[np.float64], factors: Factors | None, errors: StepErrors
) -> NDArray[np.float64]:
    """Random times of a step by its operators', float64 [draws], which errors of the step are to multiply.

    Errors of measured steps refer to predicted times, and had such operators in them: what was drawn is centred on the
    predicted `time`, and counts with `OWN_SHARE`. Without such errors it stays as it is.
    """
    if (factors is not None and factors.residual is not None) or not errors.sources:
        return drawn
    found: NDArray[np.float64] = time * (drawn / quantile(sorted(map(float, drawn)), 0.5)) ** OWN_SHARE
    return found


def interval(time: float, drawn: Sequence[float] | NDArray[np.float64]) -> tuple[float, float]:
    """5th and 95th percentile of what was drawn, widened to hold `time` itself; without draws `time` twice."""
    if not len(drawn):
        return time, time
    ordered = sorted(map(float, drawn))
    return min(time, quantile(ordered, LOW)), max(time, quantile(ordered, HIGH))


def quantile(ordered: Sequence[float], level: float) -> float:
    """`np.quantile` of rising numbers, to the last bit: numpy's imports numpy.ma for it, for 12 ms.

    >>> quantile([1.0, 2.0, 4.0], 0.75)
    3.0
    """
    place = (len(ordered) - 1) * level
    below = math.floor(place)
    low, high, share = ordered[below], ordered[min(below + 1, len(ordered) - 1)], place - below
    return low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)


@lru_cache(maxsize=64)
def drawn_factors(log_spread: tuple[float, ...], draws: int) -> NDArray[np.float64]:
    """Random factors, float64 [draws], around a correction's own; all factors of one correction share their draws."""
    # "calibration": what the numbers have been drawn by since there was no other correction.
    normal = [_normal((f"calibration {index}", Direction.ONCE), draws) for index in range(len(log_spread))]
    logs = sum((weight * z for weight, z in zip(log_spread, normal, strict=True)), np.zeros(draws))
    found: NDArray[np.float64] = np.exp(logs)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=64)
def _drawn_errors(errors: StepErrors, kind: str, devices: str, draws: int) -> NDArray[np.float64]:
    """Random measured / predicted, float64 [draws]."""
    levels = list(map(NormalDist().cdf, _normal(_RESIDUAL, draws).tolist()))
    found: NDArray[np.float64] = np.exp(errors.quantiles_elsewhere(levels, kind, devices))
    found.flags.writeable = False
    return found


@lru_cache(maxsize=1024)
def _normal(key: Key, draws: int) -> NDArray[np.float64]:
    """Standard normal numbers of one regressor, float64 [draws].

    One from the middle of each of `draws` equally likely slices, shuffled (Latin hypercube sampling, McKay et
    al., Technometrics 21, 1979): percentiles settle with far fewer draws than independent numbers need.
    """
    slices = list(_middles(draws))
    # Not numpy's generators: they take longer to import than everything here to compute.
    Random(f"{SEED} {key[0]} {key[1]}").shuffle(slices)
    shuffled = np.array(slices)
    shuffled.flags.writeable = False
    return shuffled


@lru_cache(maxsize=16)
def _middles(draws: int) -> tuple[float, ...]:
    """Standard normal numbers in the middle of equally likely slices, rising."""
    normal = NormalDist()
    return tuple(normal.inv_cdf((index + 0.5) / draws) for index in range(draws))
