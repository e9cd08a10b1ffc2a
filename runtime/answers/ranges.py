"""Questions outside the range that a regressor was trained on, and how much wider that makes an interval.

An elementwise operator waits for memory, so its range counts elements, whatever their shape. Every other operator has a
range per feature. A little beyond is no extrapolation (`TOLERANCE`).

Intervals in a bundle are quantiles of errors inside the trained range, and do not hold outside of it. How much larger
errors are outside is known from the parts that a training holds out (`Widening`): the largest sizes, whole layouts,
whole roles. The error there is mostly that of a slope, and grows in log(time) with the distance's logarithm.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

from kernelcast.runtime.bundle.regressor_entry import Layout, RegressorEntry
from kernelcast.runtime.bundle.widening import PRIOR
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.operators import OPERATORS

TOLERANCE = 0.02
"""How far outside its range a value may lie without a warning, as a fraction of the range's end."""
ELEMENTS = "elements"
"""Named as the feature of a warning about an elementwise operator."""
LAYOUT_FEATURES = 2
"""The last features of every collective (operator table) are its layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exceeded:
    """A value outside its trained range by more than the tolerance."""

    feature: str
    asked: float
    minimum: float
    maximum: float


class TrainingRows(Protocol):
    """What is known of the rows that a regressor was fitted on."""

    @property
    def operator(self) -> str: ...
    @property
    def features(self) -> tuple[str, ...]: ...
    @property
    def training_range(self) -> tuple[tuple[float, float], ...]: ...
    @property
    def elements_range(self) -> tuple[float, float] | None: ...
    @property
    def layouts(self) -> tuple[Layout, ...]: ...


def exceeded(entry: TrainingRows, vector: Sequence[float]) -> Iterator[Exceeded]:
    """The features of a workload outside the trained range, without the layout of a collective.

    Where a bundle does not record the range of elements, every feature of an elementwise operator counts.
    """
    row = OPERATORS[entry.operator]
    if entry.elements_range is not None:
        asked = [(ELEMENTS, row.elements(vector), entry.elements_range)]
    else:
        asked = list(zip(entry.features, vector, entry.training_range, strict=True))
        if entry.layouts:
            asked = asked[:-LAYOUT_FEATURES]
    for feature, value, (low, high) in asked:
        if not low / (1 + TOLERANCE) <= value <= high * (1 + TOLERANCE):
            yield Exceeded(feature=feature, asked=value, minimum=low, maximum=high)


def is_unmeasured_layout(entry: TrainingRows, vector: Sequence[float]) -> bool:
    """Whether a collective is asked for a layout that none of its samples has."""
    return bool(entry.layouts) and tuple(vector[-LAYOUT_FEATURES:]) not in entry.layouts


OTHER_LINKS_LOG_HALF_WIDTH = math.log(10.0)
"""Links inside a node are about ten times as fast as its network cards: 300 GB/s and 25 with A100, 450 and 50 with H100
(shipped/devices.toml, shipped/fabrics)."""
MOST_TIMES = 1000.0
"""No interval is widened beyond this factor, up and down."""

Answer = tuple[float, float, float]


def doublings_beyond(measured: TrainingRows, vector: tuple[float, ...]) -> float:
    """How often the farthest feature (or the elements) is twice or half the nearer end of its range; 0 inside, and
    beyond the larger end where the call is divisible.
    """
    farthest, divisible = 0.0, OPERATORS[measured.operator].divisible
    for one in exceeded(measured, vector):
        if one.asked > one.maximum > 0 and one.feature not in divisible:
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
