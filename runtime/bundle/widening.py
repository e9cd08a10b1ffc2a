"""How much wider an interval gets outside of what was measured, as held-out distances showed."""

import math
from typing import Annotated, Any, Self

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.record import Check, Record, at_least, between, one_of, read_record, record_values

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
