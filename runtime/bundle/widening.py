"""How much wider an interval gets outside of what was measured, as held-out distances showed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from kernelcast.runtime.bundle.field_reader import FieldReader, require

KINDS = ("size", "layout", "role")
"""Ways to be outside: larger or smaller sizes, a collective's layout, a role that was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Widening:
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

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in manifest.json; an infinite distance is null."""
        return {
            "size_per_doubling": self.size_per_doubling,
            "layout_per_doubling": self.layout_per_doubling,
            "new_role": self.new_role,
            "held_out": held_out_values(self.held_out),
        }

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Inverse of `to_dict`.

        Raises:
            DataError: a field is missing, unknown, ill-typed or out of bounds.
        """
        read = FieldReader("widening", values, [field.name for field in fields(cls)])
        return cls(
            size_per_doubling=read.number("size_per_doubling"),
            layout_per_doubling=read.number("layout_per_doubling"),
            new_role=read.number("new_role"),
            held_out=tuple(_held_out(one) for one in read.items("held_out")),
        )


def held_out_values(held_out: Sequence[HeldOut]) -> list[dict[str, Any]]:
    """Plain values; an infinite distance is null."""
    return [
        {
            "kind": one.kind,
            "doublings": one.doublings if math.isfinite(one.doublings) else None,
            "rows": one.rows,
            "inside": one.inside,
        }
        for one in held_out
    ]


def _held_out(values: object) -> HeldOut:
    read = FieldReader("held out", values, [field.name for field in fields(HeldOut)])
    doublings = read.number_or_null("doublings")
    return HeldOut(
        kind=read.text("kind"),
        doublings=math.inf if doublings is None else doublings,
        rows=read.integer("rows"),
        inside=read.number("inside"),
    )


PRIOR = Widening(size_per_doubling=math.log(1.3), layout_per_doubling=math.log(1.5), new_role=math.log(1.05))
"""Where nothing could be held out: what three of four operators of an A100 and a GH200 need (docs/validation.md)."""
