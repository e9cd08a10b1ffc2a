"""The 90 % interval of a regressor: by which factor a measured time may differ from the predicted one."""

import math
from typing import Annotated, Self

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.record import Check, Record, one_of

LEVEL = 0.9
"""The share of measured times that an interval is made to hold."""

METHODS = ("cross_conformal", "largest_error")
"""How half-widths were found: a quantile of the errors on held-out rows, or, with few rows, beyond the largest one."""

GROUPINGS = ("all", "size", "layout")
"""What half-widths depend on: nothing, the product of the features, or the layout (nodes, GPUs per node)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval(Record):
    """Low and high are the time divided and multiplied by exp(half-width); one half-width per group.

    With `by` "size" the groups lie between `size_bounds`, increasing products of the features: group i holds products
    above bound i − 1, up to bound i. With "layout" they are `layouts`, [nodes, GPUs per node], and last every other
    layout. "all" has one group.

    Raises:
        DataError: a value is outside what is allowed.
    """

    method: Annotated[str, one_of(METHODS)]
    level: Annotated[float, Check(lambda value: 0 < value < 1, "a fraction between 0 and 1")]
    by: Annotated[str, one_of(GROUPINGS)]
    size_bounds: tuple[float, ...]
    layouts: tuple[tuple[int, int], ...]
    log_half_widths: tuple[float, ...]

    def __post_init__(self) -> None:
        Record.__post_init__(self)
        bounds, layouts, widths = self.size_bounds, self.layouts, self.log_half_widths
        rising = all(low < high for low, high in zip((0.0, *bounds), (*bounds, math.inf), strict=True))
        self.require(
            "size_bounds", rising and bool(bounds) == (self.by == "size"), "rising, with by size only"
        )
        distinct = len(set(layouts)) == len(layouts) and bool(layouts) == (self.by == "layout")
        self.require("layouts", distinct, "distinct, with by layout only")
        per_group = len(widths) == 1 + len(bounds) + len(layouts)
        finite = all(math.isfinite(width) and width >= 0 for width in widths)
        self.require("log_half_widths", per_group and finite, "one number, 0 or more, per group")

    @classmethod
    def of_all(cls, log_half_width: float, *, method: str = "cross_conformal") -> Self:
        """One half-width for every workload."""
        return cls(
            method=method,
            level=LEVEL,
            by="all",
            size_bounds=(),
            layouts=(),
            log_half_widths=(float(log_half_width),),
        )
