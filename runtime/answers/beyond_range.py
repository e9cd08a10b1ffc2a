"""Intervals of answers outside the measured range: the farther outside, the wider.

Intervals in a bundle are quantiles of errors inside the trained range, and do not hold outside of it. How much larger
errors are outside is known from the parts that a training holds out (`Widening`): the largest sizes, whole layouts,
whole roles. The error there is mostly that of a slope, and grows in log(time) with the distance's logarithm.
"""

import math

from kernelcast.runtime.answers.ranges import TrainingRows, exceeded, is_unmeasured_layout
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.bundle.widening import PRIOR

OTHER_LINKS_LOG_HALF_WIDTH = math.log(10.0)
"""Links inside a node are about ten times as fast as its network cards: 300 GB/s and 25 with A100, 450 and 50 with H100
(shipped/devices.toml, shipped/fabrics)."""
MOST_TIMES = 1000.0
"""No interval is widened beyond this factor, up and down."""

Answer = tuple[float, float, float]


def doublings_beyond(measured: TrainingRows, vector: tuple[float, ...]) -> float:
    """How often the farthest feature (or the elements) is twice or half the nearer end of its range; 0 inside."""
    farthest = 0.0
    for one in exceeded(measured, vector):
        if one.asked > one.maximum > 0:
            farthest = max(farthest, math.log2(one.asked / one.maximum))
        elif 0 < one.asked < one.minimum:
            farthest = max(farthest, math.log2(one.minimum / one.asked))
    return farthest


def layout_doublings(measured: TrainingRows, vector: tuple[float, ...]) -> float:
    """Doublings of nodes and of devices per node from the nearest measured layout; 0 of a measured one."""
    if not is_unmeasured_layout(measured, vector):
        return 0.0
    nodes, gpus = (max(1.0, value) for value in vector[-2:])
    return min(abs(math.log2(nodes / n)) + abs(math.log2(gpus / g)) for n, g in measured.layouts)


def is_over_other_links(measured: TrainingRows, vector: tuple[float, ...]) -> bool:
    """Whether a layout spans nodes and none that was measured does, or the reverse."""
    if not is_unmeasured_layout(measured, vector):
        return False
    return (vector[-2] > 1) not in {nodes > 1 for nodes, _ in measured.layouts}


def added_half_width(entry: RegressorEntry, vector: tuple[float, ...], role: str) -> float:
    """What the distance from the measured workloads adds to the half-width of log(time)."""
    widening = entry.widening or PRIOR
    added = widening.size_per_doubling * doublings_beyond(entry, vector)
    added += widening.layout_per_doubling * layout_doublings(entry, vector)
    if is_over_other_links(entry, vector):
        added += OTHER_LINKS_LOG_HALF_WIDTH
    if role and entry.role_errors and role not in entry.role_errors:
        added += widening.new_role
    return added


def widened(answer: Answer, added: float) -> Answer:
    """`answer` (time, low, high) with low and high farther off by a half-width of log(time)."""
    if not added:
        return answer
    time_us, low_us, high_us = answer
    return time_us, time_us / _spread(time_us / low_us, added), time_us * _spread(high_us / time_us, added)


def _spread(factor: float, added: float) -> float:
    return max(factor, math.exp(min(math.log(MOST_TIMES), math.log(factor) + added)))
