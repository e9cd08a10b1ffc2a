"""How much wider an interval gets outside of what was measured, as held-out distances showed."""

import math
from dataclasses import dataclass
from typing import Any, Self

from kernelcast.runtime.bundle.checks import require
from kernelcast.runtime.record import Record, read_record, record_values

KINDS = ("size", "layout", "role")
"""Ways to be outside: larger or smaller sizes, a collective's layout, a role that was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut(Record):
    """Rows that a fit did not see, up to `doublings` away from those that it saw (infinite: any distance).

    `inside` is the share of them within their interval, widened by what the *other* held-out parts gave.
    """

    kind: str
    doublings: float
    rows: int
    inside: float

    def __post_init__(self) -> None:
        require(self.kind in KINDS, "held out", "kind", self.kind, ", ".join(KINDS))
        require(self.doublings > 0, "held out", "doublings", self.doublings, "a number above 0")
        require(self.rows > 0, "held out", "rows", self.rows, "at least 1")
        require(0 <= self.inside <= 1, "held out", "inside", self.inside, "0 to 1")

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

    size_per_doubling: float
    layout_per_doubling: float
    new_role: float
    held_out: tuple[HeldOut, ...] = ()

    def __post_init__(self) -> None:
        for name in ("size_per_doubling", "layout_per_doubling", "new_role"):
            value = getattr(self, name)
            require(math.isfinite(value) and value >= 0, "widening", name, value, "a number, 0 or more")


PRIOR = Widening(size_per_doubling=math.log(1.3), layout_per_doubling=math.log(1.5), new_role=math.log(1.05))
"""Where nothing could be held out: what three of four operators of an A100 and a GH200 need (docs/validation.md)."""
