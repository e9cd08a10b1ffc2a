"""Where an answer is not the golden one, number by number."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isclose
from typing import Any

RELATIVE = 1e-9
_DIGITS = 6e-11
"""What rounding to 11 digits may add."""
_SHARES = ("bubble_share", "known", "warnings")
_EXACT = ("layer_counts", "parameters", "refused", "calls", "count")


@dataclass(frozen=True, slots=True)
class Difference:
    """One number. `field` is its path, such as `memory.working_bytes[3]`."""

    device: str
    case: str
    field: str
    old: Any
    new: Any

    @property
    def size(self) -> float:
        """Relative difference; infinite for what is no number, or on one side only."""
        if not isinstance(self.old, int | float) or not isinstance(self.new, int | float):
            return float("inf")
        largest = max(abs(self.old), abs(self.new))
        return abs(self.new - self.old) / largest if largest else 0.0

    @property
    def kind(self) -> str:
        """The field without the stage's number."""
        return self.field.split("[")[0]

    def __str__(self) -> str:
        return f"{self.device}, {self.case}: {self.field} was {self.old}, is {self.new} ({relative_text(self.size)})"


def relative_text(size: float) -> str:
    """A relative difference in a few characters."""
    return "other" if size == float("inf") else f"{size:.1e}" if size < 1e-3 else f"{size:.2%}"


def differences(
    device: str, case: str, old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[Difference]:
    """Of two answers to a case; only the refusal where just one of them is refused."""
    if ("refused" in old) != ("refused" in new):
        yield Difference(
            device, case, "refused", old.get("refused", "answered"), new.get("refused", "answered")
        )
        return
    before, after = dict(_flat(old)), dict(_flat(new))
    for field in [*before, *(field for field in after if field not in before)]:
        one, other = before.get(field), after.get(field)
        if not _is_same(field, one, other):
            yield Difference(device, case, field, one, other)


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flat(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _flat(item, f"{path}[{index}]")
    else:
        yield path, value


def _is_same(field: str, old: Any, new: Any) -> bool:
    if old == new:
        return True
    name = field.split("[")[0]
    if name in _EXACT or isinstance(old, str) or isinstance(new, str):
        return False
    # A component that a layout does not have is left out, or 0.
    one, other = old or 0.0, new or 0.0
    if name.endswith("_bytes"):  # rounded up from floats
        return bool(abs(one - other) <= 1)
    smallest = 1e-9 if name.split(".")[0] in _SHARES else 1e-16
    return isclose(one, other, rel_tol=RELATIVE + _DIGITS, abs_tol=smallest)
