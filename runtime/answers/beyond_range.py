"""Intervals of answers beyond what was measured: wider, the farther out a regressor was asked.

Intervals in a bundle are quantiles of errors inside the trained range, and do not hold outside of it. How
much larger errors are outside is known from the rows that a training holds out at the large end
(`extrapolation_error`). The error there is mostly that of a slope, and grows in log(time) in proportion to the
distance's logarithm.
"""

import math

from kernelcast.runtime.answers.ranges import exceeded, is_unmeasured_layout
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry

MOST_TIMES = 100.0
"""No interval is widened beyond this factor, up and down."""

Answer = tuple[float, float, float]


def doublings_beyond(entry: RegressorEntry, vector: tuple[float, ...]) -> float:
    """How often the farthest feature is twice (or half) the nearer end of its trained range; 0 inside of it.

    The range of an elementwise operator is that of its number of elements.
    """
    farthest = 0.0
    for one in exceeded(entry, vector):
        if one.asked > one.maximum > 0:
            farthest = max(farthest, math.log2(one.asked / one.maximum))
        elif 0 < one.asked < one.minimum:
            farthest = max(farthest, math.log2(one.minimum / one.asked))
    return farthest


def widened(entry: RegressorEntry, vector: tuple[float, ...], answer: Answer) -> Answer:
    """`answer` (time, low, high) with low and high farther off where `vector` lies beyond the trained range.

    Their logarithmic distances from the time grow by the regressor's error beyond its range over that inside of it (at
    least 1), and beyond one doubling in proportion to the doublings. A collective's interval for layouts that were
    never measured is the widest of all, and stays.
    """
    if is_unmeasured_layout(entry, vector):  # its interval knows layouts that were not measured
        return answer
    doublings = doublings_beyond(entry, vector)
    if not doublings:
        return answer
    inside, beyond = entry.validation_error, entry.extrapolation_error
    growth = max(1.0, beyond / inside) if beyond is not None and inside > 0 else 1.0
    growth *= max(1.0, doublings)
    time_us, low_us, high_us = answer
    return time_us, time_us / _spread(time_us / low_us, growth), time_us * _spread(high_us / time_us, growth)


def _spread(factor: float, growth: float) -> float:
    return max(factor, math.exp(min(math.log(MOST_TIMES), growth * math.log(factor))))
