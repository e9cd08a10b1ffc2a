"""Statistics of repetitions (docs/method.md, Measuring); durations in microseconds, in measured order.

All of them raise UsageError without any duration.
"""

import statistics
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from kernelcast.runtime.errors import UsageError

PAPER_REPETITIONS = 10
QUIET_FRACTION = 0.1


def middle_five_mean_us(durations: Sequence[float]) -> float:
    """Mean of the middle five of the first ten durations (µs), the paper's statistic.

    These are the third to seventh of ten sorted durations; of fewer than ten the middle five (rounded down), of fewer
    than five all.
    """
    first = sorted(_some(durations)[:PAPER_REPETITIONS])
    low = max(0, (len(first) - 5) // 2)
    return statistics.fmean(first[low : low + 5])


def percentile(values: Sequence[float], fraction: float) -> float:
    """The value below which `fraction` of `values` lies, linear between neighbours.

    Rank `fraction · (n − 1)` counted from 0: numpy's default, type 7 of Hyndman and Fan (1996). A fraction outside 0
    to 1 is a UsageError.
    """
    if not 0 <= fraction <= 1:
        raise UsageError(f"percentile: found fraction {fraction}, expected 0 to 1")
    ordered = sorted(_some(values))
    rank = fraction * (len(ordered) - 1)
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (rank - below) * (ordered[above] - ordered[below])


def weighted_quantile(weighted: Sequence[tuple[float, float]], fraction: float) -> float:
    """The least of values, with weights above 0, up to which they have this fraction of all weight; 1.0 without any."""
    ordered = sorted(weighted)
    below = list(accumulate(weight for _, weight in ordered))
    return ordered[bisect_left(below, fraction * below[-1])][0] if ordered and below[-1] else 1.0


def quiet_us(durations: Sequence[float]) -> float:
    """10th percentile of all durations (µs), see `percentile`: the time on an undisturbed machine."""
    return percentile(durations, QUIET_FRACTION)


def inner_mean_us(durations: Sequence[float]) -> float:
    """Mean (µs) without the lowest and the highest tenth: the mean of a step's many exchanges, without rare stalls."""
    ordered = sorted(_some(durations))
    tenth = len(ordered) // 10
    return statistics.fmean(ordered[tenth : len(ordered) - tenth])


def spread(durations: Sequence[float]) -> float:
    """(90th − 10th percentile) / median of all durations, without unit; 0 if the median is 0."""
    median = percentile(durations, 0.5)
    if median == 0:
        return 0.0
    return (percentile(durations, 0.9) - percentile(durations, QUIET_FRACTION)) / median


def _some(values: Sequence[float]) -> Sequence[float]:
    if not values:
        raise UsageError("statistic of no repetitions: expected at least one duration")
    return values
