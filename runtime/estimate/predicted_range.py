"""A predicted time as a distribution: from the point each side falls off log-normally to the interval's end."""

from collections.abc import Sequence
from math import copysign, exp, log
from statistics import NormalDist

from kernelcast.runtime.dataclass import dataclass

_NORMAL = NormalDist()
_AT_95 = _NORMAL.inv_cdf(0.95)
_QUANTILES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRange:
    """A median with 5th and 95th percentile, of any unit; all above 0, and in this order."""

    median: float
    interval: tuple[float, float]

    def share_below(self, value: float) -> float:
        """Probability that the predicted quantity is below a value above 0."""
        distance = log(value / self.median)
        spread = abs(log(self.interval[distance > 0] / self.median))
        return _NORMAL.cdf(_AT_95 * distance / spread) if spread else 0.5 + copysign(0.5, distance)

    def quantile(self, share: float) -> float:
        """The value below which the predicted quantity is with this probability."""
        spread = abs(log(self.interval[share > 0.5] / self.median))
        return self.median * exp(_NORMAL.inv_cdf(share) / _AT_95 * spread)


def chances_of_least(ranges: Sequence[PredictedRange]) -> tuple[float, ...]:
    """Probability of each to be the least of all, their errors being independent; together 1."""
    shares = [(number + 0.5) / _QUANTILES for number in range(_QUANTILES)]
    found = []
    for own in ranges:
        others = [one for one in ranges if one is not own]
        chance = 0.0
        for share in shares:
            value, is_least = own.quantile(share), 1.0
            for other in others:
                is_least *= 1 - other.share_below(value)
            chance += is_least / _QUANTILES
        found.append(chance)
    whole = sum(found)
    return tuple(one / whole for one in found) if whole else tuple(1 / len(found) for _ in found)
