"""Questions outside the range that a regressor was trained on.

An elementwise operator waits for memory, so its range counts elements, whatever their shape. Every other operator has a
range per feature. A little beyond is no extrapolation (`TOLERANCE`).
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from kernelcast.runtime.bundle.regressor_entry import Layout
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
