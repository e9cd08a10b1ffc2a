"""The fit of log factors against the textbook's formulas, on steps whose logarithm is a line or has a corner."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from kernelcast.runtime.bundle.calibration import CLASSES, LARGEST_FACTOR
from kernelcast.validate.calibration import GROUPS, PRIOR, fit

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass
class Line:
    """log(measured) is `wanted` above the prediction without factors, of these slopes [classes]."""

    wanted: float
    slopes: Array

    def linearised(self, log_factors: Array) -> tuple[float, Array]:
        return self.wanted - float(self.slopes @ log_factors), self.slopes


@pytest.mark.parametrize("parameters", [1, 2, 3, 4])
def test_a_fit_of_lines_is_the_averaged_posterior(parameters: int) -> None:
    generator = np.random.default_rng(parameters)
    slopes, wanted = generator.uniform(0, 1, (7, len(CLASSES))), generator.normal(0.03, 0.04, 7)
    found = fit([Line(*one) for one in zip(wanted, slopes, strict=True)], parameters)  # type: ignore[misc]
    groups = np.array(
        [[GROUPS[parameters][one] == column for column in range(parameters)] for one in CLASSES]
    )
    own = slopes @ groups
    weights, means, covariances = [], [], []
    residuals = [0.003125, 0.00625, 0.0125, 0.025, 0.05, 0.1]
    for residual, power in zip(residuals, range(-4, 2), strict=True):
        spread = PRIOR**2 * own @ own.T + residual**2 * np.eye(7)
        weights.append(math.exp(-(power**2) / 2) * multivariate_normal.pdf(wanted, np.zeros(7), spread))
        covariances.append(np.linalg.inv(np.eye(parameters) / PRIOR**2 + own.T @ own / residual**2))
        means.append(covariances[-1] @ own.T @ wanted / residual**2)
    shares = np.array(weights) / sum(weights)
    mean = shares @ np.array(means)
    second = sum(
        share * (covariance + np.outer(one, one))
        for share, covariance, one in zip(shares, covariances, means, strict=True)
    )
    assert found.log_factors == pytest.approx(groups @ mean, rel=1e-6)
    expected = groups @ (second - np.outer(mean, mean)) @ groups.T
    np.testing.assert_allclose(found.log_spread @ found.log_spread.T, expected, rtol=1e-6, atol=1e-12)
    assert found.residual == pytest.approx(math.sqrt(shares @ np.square(residuals)), rel=1e-9)


@dataclass
class Corner:
    """The prediction's logarithm rises by `below` up to `at` and by `above` from there on, of one factor for all."""

    wanted: float
    at: float
    below: float
    above: float

    def linearised(self, log_factors: Array) -> tuple[float, Array]:
        over = float(log_factors[0]) - self.at
        slope = self.above if over > 0 else self.below
        return self.wanted - self.below * self.at - slope * over, np.full(len(CLASSES), slope / len(CLASSES))


def test_whole_steps_that_leap_over_a_corner_are_halved() -> None:
    """Below the corner the fit leads to 0.05, above it to 0.0015: whole steps end at one of the two."""
    corner = Corner(wanted=0.2, at=0.02, below=4.0, above=0.01)
    [factor, *_] = fit([corner] * 5, 1).log_factors  # type: ignore[list-item]
    assert abs(factor - corner.at) < 0.016


def test_factors_stay_within_the_largest() -> None:
    [factor, *_] = fit([Line(100.0, np.ones(len(CLASSES)))] * 50, 1).log_factors  # type: ignore[list-item]
    assert factor == pytest.approx(math.log(LARGEST_FACTOR), abs=2e-3)
    assert factor < math.log(LARGEST_FACTOR)
