"""The 90 % interval of a regressor: by which factor a measured time may differ from the predicted one."""

import math
from dataclasses import dataclass
from typing import Self

from kernelcast.runtime.bundle.checks import require
from kernelcast.runtime.record import Record

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
    layout. With "all" there is one group.

    Raises:
        DataError: a value is outside what is allowed.
    """

    method: str
    level: float
    by: str
    size_bounds: tuple[float, ...]
    layouts: tuple[tuple[int, int], ...]
    log_half_widths: tuple[float, ...]

    def __post_init__(self) -> None:
        bounds, layouts, widths = self.size_bounds, self.layouts, self.log_half_widths
        rising = all(low < high for low, high in zip((0.0, *bounds), (*bounds, math.inf), strict=True))
        for holds, name, expected in (
            (self.method in METHODS, "method", " or ".join(METHODS)),
            (0 < self.level < 1, "level", "a fraction between 0 and 1"),
            (self.by in GROUPINGS, "by", ", ".join(GROUPINGS)),
            (rising and bool(bounds) == (self.by == "size"), "size_bounds", "rising, with by size only"),
            (
                len(set(layouts)) == len(layouts) and bool(layouts) == (self.by == "layout"),
                "layouts",
                "distinct, with by layout only",
            ),
            (
                len(widths) == 1 + len(bounds) + len(layouts)
                and all(math.isfinite(width) and width >= 0 for width in widths),
                "log_half_widths",
                "one number, 0 or more, per group",
            ),
        ):
            require(holds, "interval", name, getattr(self, name), expected)

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
