"""How far measured memory lies from predicted: an interval, and the probability to fit."""

import math
import tomllib
from functools import cache

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.shipped import MEMORY_ERRORS

_Z_95 = 1.6448536269514722
"""Standard deviations from the middle of a normal distribution to its 95 % quantile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySpread:
    """log(measured / predicted) of measured steps, 5, 50 and 95 % quantiles; on each side of the middle half a normal
    distribution. `kernelcast validate memory` makes the table, memory_errors.toml.
    """

    low: float
    middle: float
    high: float

    def interval_bytes(self, predicted_bytes: float) -> tuple[int, int]:
        """What is allocated in nine of ten steps."""
        return round(predicted_bytes * math.exp(self.low)), round(predicted_bytes * math.exp(self.high))

    def fit_probability(self, predicted_bytes: float, usable_bytes: float) -> float:
        """Probability that a step needs at most `usable_bytes`."""
        if usable_bytes <= 0:
            return 0.0
        distance = math.log(usable_bytes / predicted_bytes) - self.middle
        side = self.high - self.middle if distance > 0 else self.middle - self.low
        return 0.5 * (1 + math.erf(distance / side * _Z_95 / math.sqrt(2)))

    def largest_share(self, probability: float) -> float:
        """What a prediction may be of the memory that it fits into with this probability.

        >>> round(MemorySpread(low=-0.1, middle=0.0, high=0.1).largest_share(0.95), 3)
        0.905
        """
        from statistics import NormalDist  # takes longer to import than all else here

        z = NormalDist().inv_cdf(probability) / _Z_95
        side = self.high - self.middle if z > 0 else self.middle - self.low
        return math.exp(-(self.middle + z * side))


@cache
def memory_spread(has_experts: bool) -> MemorySpread:
    """Of dense models, or of models with experts."""
    table = tomllib.loads(MEMORY_ERRORS.read_text())["experts" if has_experts else "dense"]
    return MemorySpread(low=table["low"], middle=table["middle"], high=table["high"])
