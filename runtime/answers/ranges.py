"""What a regressor was asked outside of what it was trained on.

An elementwise operator waits for memory, so its range is that of its number of elements, whatever their shape. Every
other operator has a range per feature. A little beyond is no extrapolation (`TOLERANCE`).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

from kernelcast.runtime.answers.causes import Cause
from kernelcast.runtime.bundle.regressor_entry import Layout, RegressorEntry
from kernelcast.runtime.operators import OPERATORS, Direction

TOLERANCE = 0.02
"""How far outside its range a value may lie without a warning, as a fraction of the range's end."""
ELEMENTS = "elements"
"""Named as the feature of a warning about an elementwise operator."""
_LAYOUT_FEATURES = 2
"""The last features of every collective (operator table) are its layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureWarning:
    """A regressor was asked outside what it was trained on: `feature` had the value `asked`."""

    cause: ClassVar[Cause] = Cause.EXTRAPOLATED

    operator: str
    direction: Direction
    feature: str
    asked: float
    minimum: float
    maximum: float

    def __str__(self) -> str:
        return (
            f"{self.operator} ({self.direction}): {self.feature} = {self.asked:g} is outside the training "
            f"range, {self.minimum:g} to {self.maximum:g}"
        )

    @property
    def topic(self) -> str:
        """What it is about; of several warnings about one thing the most severe is shown."""
        return self.operator

    @property
    def severity(self) -> float:
        """How many times the end of the range, or its part."""
        if self.asked > self.maximum:
            return self.asked / self.maximum if self.maximum > 0 else math.inf
        return self.minimum / self.asked if self.asked > 0 else math.inf

    @property
    def brief(self) -> str:
        """A clause for a line about several operators."""
        side = "beyond" if self.asked > self.maximum else "below"
        times = f"{self.severity:,.0f}" if self.severity >= 100 else f"{self.severity:.3g}"
        return f"{self.operator} up to {times}× {side} measured {self.feature}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `range` is [minimum, maximum]."""
        return {
            "cause": self.cause.value,
            "operator": self.operator,
            "direction": self.direction.value,
            "feature": self.feature,
            "asked": self.asked,
            "range": [self.minimum, self.maximum],
            "message": str(self),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutWarning:
    """A collective was asked for a layout that none of its samples has."""

    cause: ClassVar[Cause] = Cause.EXTRAPOLATED

    operator: str
    direction: Direction
    nodes: float
    gpus_per_node: float
    measured: tuple[Layout, ...]

    def __str__(self) -> str:
        measured = ", ".join(f"{nodes} × {gpus}" for nodes, gpus in self.measured)
        return (
            f"{self.operator} ({self.direction}): layout {self.nodes:g} × {self.gpus_per_node:g} "
            f"(nodes × devices per node) was never measured, only {measured}"
        )

    @property
    def topic(self) -> str:
        """What it is about; of several warnings about one thing the most severe is shown."""
        return f"{self.operator} layout"

    @property
    def severity(self) -> float:
        """Processes of the layout."""
        return self.nodes * self.gpus_per_node

    @property
    def brief(self) -> str:
        """A clause for a line about several operators."""
        return f"{self.operator} on {self.nodes:g} × {self.gpus_per_node:g}, never measured"

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `feature` is "layout", `asked` and each of `measured` are [nodes, devices per node]."""
        return {
            "cause": self.cause.value,
            "operator": self.operator,
            "direction": self.direction.value,
            "feature": "layout",
            "asked": [self.nodes, self.gpus_per_node],
            "measured": [list(layout) for layout in self.measured],
            "message": str(self),
        }


RangeWarning: TypeAlias = FeatureWarning | LayoutWarning


@dataclass(frozen=True, slots=True, kw_only=True)
class Exceeded:
    """A value outside its trained range by more than the tolerance."""

    feature: str
    asked: float
    minimum: float
    maximum: float


class Measured(Protocol):
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


def exceeded(entry: Measured, vector: Sequence[float]) -> Iterator[Exceeded]:
    """What of a workload lies outside the trained range; layouts of collectives are another matter.

    Where a bundle does not record the range of elements, every feature of an elementwise operator counts.
    """
    row = OPERATORS[entry.operator]
    if entry.elements_range is not None:
        asked = [(ELEMENTS, row.elements(vector), entry.elements_range)]
    else:
        asked = list(zip(entry.features, vector, entry.training_range, strict=True))
        if entry.layouts:
            asked = asked[:-_LAYOUT_FEATURES]
    for feature, value, (low, high) in asked:
        if not low / (1 + TOLERANCE) <= value <= high * (1 + TOLERANCE):
            yield Exceeded(feature=feature, asked=value, minimum=low, maximum=high)


def is_unmeasured_layout(entry: Measured, vector: Sequence[float]) -> bool:
    """Whether a collective is asked for a layout that none of its samples has."""
    return bool(entry.layouts) and tuple(vector[-_LAYOUT_FEATURES:]) not in entry.layouts


def out_of_range(
    entry: RegressorEntry, vectors: Sequence[tuple[float, ...]]
) -> dict[RangeWarning, tuple[tuple[float, ...], ...]]:
    """A warning per feature and value outside the training range and per layout never measured, as they appear.

    Each with the workload vectors that it is about.
    """
    found: dict[RangeWarning, list[tuple[float, ...]]] = {}
    for vector in vectors:
        for one in exceeded(entry, vector):
            warning: RangeWarning = FeatureWarning(
                operator=entry.operator,
                direction=entry.direction,
                feature=one.feature,
                asked=one.asked,
                minimum=one.minimum,
                maximum=one.maximum,
            )
            found.setdefault(warning, []).append(vector)
        if is_unmeasured_layout(entry, vector):
            nodes, gpus_per_node = vector[-_LAYOUT_FEATURES:]
            warning = LayoutWarning(
                operator=entry.operator,
                direction=entry.direction,
                nodes=nodes,
                gpus_per_node=gpus_per_node,
                measured=entry.layouts,
            )
            found.setdefault(warning, []).append(vector)
    return {warning: tuple(own) for warning, own in found.items()}
