"""What correcting answers needs to know: a factor of every operator's time, and how sure it is."""

import math
from collections.abc import Sequence
from typing import Protocol


class Factors(Protocol):
    """A correction of operators' times: a bundle's calibration, or what a software stack does to sums of operators."""

    @property
    def residual(self) -> float | None:
        """Standard deviation of log(measured step / predicted step) that the factors leave; None: as without any."""

    def log_factor(self, operator: str) -> float:
        """Natural logarithm of the factor of an operator's time."""

    def log_spread_of(self, operator: str) -> Sequence[float]:
        """With independent standard normal z, the logarithm varies as log_factor + log_spread · z."""


def factor_of(factors: Factors | None, operator: str) -> float:
    """The factor of an operator's times; 1 without a correction."""
    return 1.0 if factors is None else math.exp(factors.log_factor(operator))
