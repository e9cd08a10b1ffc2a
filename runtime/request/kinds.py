"""What a field of a request accepts: type and bounds, in words, as JSON Schema, and as checks."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol

Value = int | float | str | bool | tuple[int, ...]

_LONGEST_TEXT = 4_096  # of a path
_MOST_COUNTS = 1_000_000


class Kind(Protocol):
    """Type and bounds of a value.

    `accepts` is about values of Python, TOML or JSON as they are; `read` also takes text (`1e9`, `true`) and answers
    None for what is not accepted. `metavar` stands for the value in the help of a command.
    """

    @property
    def expected(self) -> str: ...
    @property
    def schema(self) -> dict[str, Any]: ...
    @property
    def metavar(self) -> str: ...
    def accepts(self, value: object) -> bool: ...
    def read(self, value: object) -> Value | None: ...


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `low` to `high`; True and 4.0 are none, but `read` takes the latter."""

    low: int
    high: int
    metavar = "INTEGER"

    @property
    def values(self) -> Sequence[int]:
        return range(self.low, self.high + 1)

    @property
    def expected(self) -> str:
        exponent = len(str(self.high)) - 1
        high = f"1e{exponent}" if exponent > 6 and self.high == 10**exponent else str(self.high)
        return f"a whole number from {self.low} to {high}"

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

    def accepts(self, value: object) -> bool:
        return type(value) is int and self.low <= value <= self.high

    def read(self, value: object) -> int | None:
        number = read_decimal(value)
        if number is None or not self.low <= number <= self.high or number != number.to_integral_value():
            return None
        return int(number)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some texts."""

    values: tuple[str, ...]

    @property
    def expected(self) -> str:
        *others, last = self.values
        return f"{', '.join(others)} or {last}"

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.values)}

    @property
    def metavar(self) -> str:
        return f"[{'|'.join(self.values)}]"

    def accepts(self, value: object) -> bool:
        return value in self.values

    def read(self, value: object) -> str | None:
        return value if isinstance(value, str) and value in self.values else None


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    values = (False, True)
    expected = "true or false"
    metavar = "[true|false]"

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}

    def accepts(self, value: object) -> bool:
        return type(value) is bool

    def read(self, value: object) -> bool | None:
        if isinstance(value, str):
            return {"true": True, "false": False}.get(value)
        return value if isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class Text:
    """A text that is not blank; with `one_line` without line breaks and other unprintable characters."""

    expected: str
    one_line: bool = False
    metavar = "TEXT"

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1}

    def accepts(self, value: object) -> bool:
        return self.read(value) is not None

    def read(self, value: object) -> str | None:
        if type(value) is not str or not value.strip() or len(value) > _LONGEST_TEXT or "\0" in value:
            return None
        return None if self.one_line and not value.isprintable() else value


@dataclass(frozen=True, slots=True)
class Counts:
    """One or more whole numbers, each of them a `one`; as text `11,12,12,9`."""

    one: Whole
    expected: str
    metavar = "N,N,…"

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.one.schema}

    def accepts(self, value: object) -> bool:
        return isinstance(value, list | tuple) and bool(value) and all(map(self.one.accepts, value))

    def read(self, value: object) -> tuple[int, ...] | None:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple) or not 0 < len(parts) <= _MOST_COUNTS:
            return None
        counts = [self.one.read(part) for part in parts]
        return tuple(count for count in counts if count is not None) if None not in counts else None


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number from `low` to `high`, or above `low` with `above`."""

    low: float
    high: float
    expected: str
    above: bool = False
    metavar = "NUMBER"

    @property
    def schema(self) -> dict[str, Any]:
        return {
            "type": "number",
            "exclusiveMinimum" if self.above else "minimum": self.low,
            "maximum": self.high,
        }

    def accepts(self, value: object) -> bool:
        return isinstance(value, int | float) and self.read(value) is not None

    def read(self, value: object) -> float | None:
        number = read_decimal(value)
        if number is None or not self.low <= number <= self.high or (self.above and number == self.low):
            return None
        return float(number)


def read_decimal(value: object) -> Decimal | None:
    """An exact number, from a number or its text (`1e9`, `1_000`); never one of thousands of digits."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, int) and abs(value) > 10**50:
        return None  # too long for Python to print
    text = value.strip() if isinstance(value, str) else str(value)
    if len(text) > 50 or not re.fullmatch(r"[+-]?[0-9][0-9_]*(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?", text):
        return None
    try:
        return Decimal(text.replace("_", ""))
    except InvalidOperation:
        return None
