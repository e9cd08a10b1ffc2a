"""Which regressor answers a question: the operator's own, or a substitute where a bundle lacks it; and its range.

An elementwise operator waits for memory, so its range counts elements, whatever their shape. Every other operator has a
range per feature. A little beyond is no extrapolation (`TOLERANCE`).

Intervals in a bundle are quantiles of errors inside the trained range, and do not hold outside of it. How much larger
errors are outside is known from the parts that a training holds out (`Widening`): the largest sizes, whole layouts,
whole roles. The error there is mostly that of a slope, and grows in log(time) with the distance's logarithm.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from kernelcast.runtime.bundle.regressor_entry import PRIOR, Layout, RegressorEntry
from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.hardware.devices import ELEMENT_BYTES
from kernelcast.runtime.operators import OPERATORS, Direction, Key, Operator, OperatorClass, Vector

# 90 % of substitutes are within this factor of the operator, where both were measured (docs/trust.md, Substitutes).
PART_LOG_HALF_WIDTH = math.log(1.1)
SAME_PRODUCT_LOG_HALF_WIDTH = math.log(1.2)
OTHER_PASS_LOG_HALF_WIDTH = {OperatorClass.COMPUTE: math.log(1.5), OperatorClass.MEMORY: math.log(3.0)}
ALIKE_LOG_HALF_WIDTH = math.log(2.0)
COLLECTIVE_LOG_HALF_WIDTH = math.log(1.3)

# An operator that runs once per update has no passes: streaming gradients is a forward pass of a substitute.
_ASKED_DIRECTION = {Direction.ONCE: Direction.FORWARD}
_OTHER_PASS = {Direction.FORWARD: Direction.BACKWARD, Direction.BACKWARD: Direction.FORWARD}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """`key` is answered by the regressor `answered_by`, whose time is multiplied by `factor`; the rest as in
    `Substitute`. `is_part`: of the sum that answers. `is_other_pass`: by the ratio of FLOPs, or of bytes if
    memory-bound. `order` numbers the substitute's features if it is the same product (`Operator.same_product`).
    """

    key: Key
    answered_by: Key
    factor: float = 1.0
    gathered: bool = False
    alike: bool = False
    is_part: bool = False
    is_other_pass: bool = False
    order: tuple[int, ...] = ()
    asks: Callable[[Vector], tuple[Vector, float]] | None = None

    @property
    def is_substitute(self) -> bool:
        """Whether another regressor than the operator's own answers."""
        return self.answered_by != self.key

    @property
    def is_assumption(self) -> bool:
        """Whether a different kernel answers: neither the sum that the key is a part of, nor the same product."""
        return self.is_substitute and not self.is_part and not self.order

    @property
    def is_foreign(self) -> bool:
        """Whether another operator answers; its roles differ."""
        return self.answered_by[0] != self.key[0]

    @property
    def log_half_width(self) -> float:
        """Added to the half-width of log(time) for a substitute; that of equal work may be a substitute itself."""
        if not self.is_substitute:
            return 0.0
        if self.asks is not None:
            found = OPERATORS[self.key[0]].substitute
            assert found is not None
            inner = replace(self, key=(found.operator, self.key[1]), asks=None)
            return math.hypot(math.log(found.within), inner.log_half_width)
        if self.is_part:
            return PART_LOG_HALF_WIDTH
        if self.order:
            return SAME_PRODUCT_LOG_HALF_WIDTH
        if self.is_other_pass:
            return OTHER_PASS_LOG_HALF_WIDTH[OPERATORS[self.key[0]].operator_class]
        return ALIKE_LOG_HALF_WIDTH if self.alike else COLLECTIVE_LOG_HALF_WIDTH

    def asked(self, vector: Vector, entry: RegressorEntry) -> tuple[Vector, float]:
        """The workload at which `answered_by` (with this `entry`) is evaluated, and the factor for its time."""
        own = vector
        if self.gathered:
            entries, nodes, gpus_per_node = vector
            vector = (entries * nodes * gpus_per_node, nodes, gpus_per_node)
        if self.alike:
            return self._moving_alike(vector, entry)
        factor = self.factor
        if self.asks is not None:
            vector, times = self.asks(vector)
            factor *= times
        if self.order:
            return tuple(vector[feature] for feature in self.order), factor
        if entry.equal_features:
            place, partner = (list(entry.features).index(name) for name in entry.equal_features)
            vector = (*vector[:place], vector[partner], *vector[place + 1 :])
        vector = _folded(vector, entry)
        return vector, factor * (self._ratio(vector, own) if self.is_other_pass else 1.0)

    def _ratio(self, vector: Vector, own: Vector) -> float:
        """Work of the key's direction over that of the direction that answers, at `vector`.

        What another operator's kernels move says nothing of the two passes: then of the key's `own`.
        """
        (asked, direction), (name, other) = self.key, self.answered_by
        row = OPERATORS[name]
        if row.operator_class is OperatorClass.COMPUTE:
            slowdown = row.backward_slowdown ** (int(direction.is_backward) - int(other.is_backward))
            return slowdown * row.flops(direction, vector) / row.flops(other, vector)
        if self.asks is not None:
            row, vector = OPERATORS[asked], own
        return row.moved_bytes(direction, vector, 1) / row.moved_bytes(other, vector, 1)

    def _moving_alike(self, vector: Vector, entry: RegressorEntry) -> tuple[Vector, float]:
        """A workload inside the trained range that moves about as much, and the factor for the rest."""
        (name, direction), (by, asked) = self.key, self.answered_by
        row, own = OPERATORS[by], OPERATORS[name]
        width = ELEMENT_BYTES.get(entry.dtype, own.fewest_entry_bytes)
        moved = own.moved_bytes(direction, vector, 1) * max(own.fewest_entry_bytes / width, 1)
        per_element = row.moved_bytes(asked, (1,) * len(row.features), 1)
        alike = _within(entry.training_range, moved / per_element)
        return alike, self.factor * moved / row.moved_bytes(asked, alike, 1)


def source_of(key: Key, entries: Collection[Key]) -> Source | None:
    """What answers `key` from the regressors `entries`; None where nothing does."""
    if key in entries:
        return Source(key=key, answered_by=key)
    name, direction = key
    row = OPERATORS[name]
    for whole, parts in row.sums.items():
        if direction in parts and (name, whole) in entries:
            return Source(key=key, answered_by=(name, whole), factor=1 / len(parts), is_part=True)
    forward = (name, Direction.FORWARD)
    if direction in row.same_product and forward in entries:
        features = list(row.features)
        order = tuple(features.index(feature) for feature in row.same_product[direction])
        return Source(key=key, answered_by=forward, order=order)
    found = row.substitute
    if found is not None and found.asks is not None:
        inner = source_of((found.operator, direction), entries)
        factor = found.backward_factor if direction.is_backward and found.backward_factor else found.factor
        return (
            None if inner is None else replace(inner, key=key, asks=found.asks, factor=factor * inner.factor)
        )
    other = _OTHER_PASS.get(direction, direction)
    is_other_known = other in row.costs and (name, other) in entries
    if found is not None and found.alike and is_other_known:
        # Its own kernels say more than any that moves as much.
        return Source(key=key, answered_by=(name, other), is_other_pass=True)
    asked = direction
    if found is not None and direction not in OPERATORS[found.operator].costs:
        asked = _ASKED_DIRECTION.get(direction, direction)
    if found is not None and (found.operator, asked) in entries:
        return Source(
            key=key,
            answered_by=(found.operator, asked),
            factor=found.factor,
            gathered=found.gathered,
            alike=found.alike,
        )
    return Source(key=key, answered_by=(name, other), is_other_pass=True) if is_other_known else None


def _folded(vector: Vector, entry: RegressorEntry) -> Vector:
    """A workload with a feature of one measured value at that value, with the others multiplied (`Operator.folded`)."""
    folded = OPERATORS[entry.operator].folded
    if folded is None:
        return vector
    names = list(entry.features)
    position = names.index(folded[0])
    low, high = entry.training_range[position]
    if low != high or low < 1 or vector[position] % low:
        return vector
    times = vector[position] // int(low)
    others = {names.index(name) for name in folded[1]}
    return tuple(
        int(low) if at == position else value * times if at in others else value
        for at, value in enumerate(vector)
    )


def is_answered(row: Operator, entries: Collection[Key]) -> bool:
    keys = ((row.name, direction) for direction in row.directions)
    return all(key in entries or source_of(key, entries) for key in keys)


def _within(ranges: tuple[tuple[float, float], ...], elements: float) -> Vector:
    """A workload inside the trained ranges whose features multiply to about `elements`."""
    lows, spans = _logarithms(ranges)
    wanted, whole = math.log(max(1.0, elements)) - sum(lows), sum(spans)
    share = min(1.0, max(0.0, wanted / whole)) if whole > 0 else 0.0
    return tuple([round(math.exp(low + share * span)) for low, span in zip(lows, spans, strict=True)])


@lru_cache(maxsize=1 << 8)
def _logarithms(ranges: tuple[tuple[float, float], ...]) -> tuple[list[float], list[float]]:
    """Of the lower ends, and from end to end."""
    lows = [math.log(max(1.0, low)) for low, _ in ranges]
    return lows, [math.log(max(1.0, high)) - low for (_, high), low in zip(ranges, lows, strict=True)]


def left_out(keys: Collection[Key], entries: Mapping[Key, RegressorEntry]) -> frozenset[str]:
    """Optional operators among `keys` without an answer for each of their directions: the sum goes without them."""
    names = {name for name, _ in keys}
    return frozenset(
        name for name in names if OPERATORS[name].is_optional and not is_answered(OPERATORS[name], entries)
    )


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


def exceeded(entry: TrainingRows, vector: Sequence[float]) -> list[Exceeded]:
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
    return [
        Exceeded(feature=feature, asked=value, minimum=low, maximum=high)
        for feature, value, (low, high) in asked
        if not low / (1 + TOLERANCE) <= value <= high * (1 + TOLERANCE)
    ]


def is_unmeasured_layout(entry: TrainingRows, vector: Sequence[float]) -> bool:
    """Whether no sample of a collective has its layout."""
    return bool(entry.layouts) and tuple(vector[-LAYOUT_FEATURES:]) not in entry.layouts


OTHER_LINKS_LOG_HALF_WIDTH = math.log(10.0)
"""Links inside a node are about ten times as fast as its network cards: 300 GB/s and 25 with A100, 450 and 50 with H100
(shipped/devices.toml, shipped/fabrics)."""
MOST_TIMES = 1000.0
"""No interval is widened beyond this factor, up and down."""
_MOST_LOG = math.log(MOST_TIMES)

Answer = tuple[float, float, float]


def doublings_beyond(measured: TrainingRows, vector: tuple[float, ...]) -> float:
    """Doublings of the farthest feature beyond its range; 0 inside, and beyond the larger end of a divisible one."""
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


def added_half_width(
    entry: RegressorEntry, vector: tuple[float, ...], role: str, *, is_inside: bool = False
) -> float:
    """What the distance from the measured workloads adds to the half-width of log(time); `is_inside` is known of one
    without a warning about ranges.
    """
    widening, added = entry.widening or PRIOR, 0.0
    if not is_inside:
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
    return max(factor, math.exp(min(_MOST_LOG, math.log(factor) + added)))


def at_least(answer: Answer, least_us: float) -> Answer:
    """An answer whose time and interval are not below `least_us`; one that is not known stays so."""
    if math.isnan(answer[0]):
        return answer
    time_us, low_us, high_us = answer
    return max(time_us, least_us), max(low_us, least_us), max(high_us, least_us)
