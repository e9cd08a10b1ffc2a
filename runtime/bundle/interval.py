"""The 90 % interval of a regressor: by which factor a measured time may differ from the predicted one.

Outside of what was measured it is wider, as held-out distances showed.
"""

import math
from typing import Annotated, Any, Self

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.record import Check, Record, at_least, between, one_of, read_record, record_values

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


KINDS = ("size", "layout", "role")
"""Ways to be outside: larger or smaller sizes, a collective's layout, a role that was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut(Record):
    """Rows that a fit did not see, up to `doublings` away from those that it saw (infinite: any distance).

    `inside` is the share of them within their interval, widened by what the *other* held-out parts gave.
    """

    kind: Annotated[str, one_of(KINDS)]
    doublings: Annotated[float, Check(lambda value: value > 0, "a number above 0, or null")]
    rows: Annotated[int, at_least(1)]
    inside: Annotated[float, between(0, 1)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values; an infinite distance is null."""
        return {**record_values(self), "doublings": self.doublings if math.isfinite(self.doublings) else None}

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Inverse of `to_dict`.

        Raises:
            DataError: a field is missing, unknown, of another type or out of bounds.
        """
        if isinstance(values, dict) and values.get("doublings", 0) is None:
            values = {**values, "doublings": math.inf}
        return read_record(cls, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Widening(Record):
    """What is added to the half-width of log(time): per doubling of a size, of a layout's processes, and for a role.

    Raises:
        DataError: a value is outside what is allowed.
    """

    size_per_doubling: Annotated[float, at_least(0)]
    layout_per_doubling: Annotated[float, at_least(0)]
    new_role: Annotated[float, at_least(0)]
    held_out: tuple[HeldOut, ...] = ()


PRIOR = Widening(size_per_doubling=math.log(1.3), layout_per_doubling=math.log(1.5), new_role=math.log(1.05))
"""Where nothing could be held out: what three of four operators of an A100 and a GH200 need (docs/validation.md)."""
