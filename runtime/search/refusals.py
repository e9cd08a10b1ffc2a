"""Refused combinations of a space: how many, by the field that each refusal is about."""

from collections.abc import Callable
from typing import Any

from kernelcast.runtime.dataclass import dataclass, field
from kernelcast.runtime.errors import UsageError


@dataclass(frozen=True, slots=True)
class Refusal:
    """Combinations that are no valid layout: their number, and the first refusal in words."""

    count: int
    example: str


@dataclass(slots=True)
class Refusals:
    """Refused combinations by the field that the refusal is about."""

    by_field: dict[str, Refusal] = field(default_factory=dict)

    def add(self, error: UsageError) -> None:
        """Count a refusal."""
        self._add(error.field, Refusal(1, str(error)))

    def merge(self, other: "Refusals") -> None:
        """Add another part's refusals."""
        for name, refusal in other.by_field.items():
            self._add(name, refusal)

    def _add(self, name: str, refusal: Refusal) -> None:
        known = self.by_field.get(name)
        if known is not None:
            refusal = Refusal(known.count + refusal.count, known.example)
        self.by_field[name] = refusal


def refusal_of(check: Callable[..., None], *values: Any) -> UsageError | None:
    """What a check says against some values; None if it raises nothing."""
    try:
        check(*values)
    except UsageError as error:
        return error
    return None
