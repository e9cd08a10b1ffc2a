"""Typed access to a JSON object that must have exactly the fields expected, and what a field may hold."""

import math
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from kernelcast.runtime.errors import DataError

_HEX = re.compile(r"[0-9a-f]+")
_WORD = re.compile(r"[A-Za-z0-9_.+-]+")


def require(holds: bool, where: str, name: str, value: object, expected: str) -> None:
    """Refuse a value.

    Raises:
        DataError: it does not hold; names the field, the value and what was expected.
    """
    if not holds:
        raise DataError(f"{where}: {name} is {value!r:.80}, expected {expected}")


def is_hex(text: str) -> bool:
    """Lower-case hex digits, at least one."""
    return _HEX.fullmatch(text) is not None


def is_word(text: str) -> bool:
    """A name without spaces, such as float32."""
    return _WORD.fullmatch(text) is not None


def is_moment(text: str) -> bool:
    """ISO 8601 with a time zone."""
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


class FieldReader:
    """Typed access to a JSON object whose fields must be exactly `names`."""

    def __init__(self, where: str, values: object, names: Sequence[str]) -> None:
        if not isinstance(values, dict):
            raise DataError(f"{where}: expected an object, found {type(values).__name__}")
        odd = sorted(map(str, set(values) ^ set(names)))
        if odd:
            raise DataError(f"{where}: missing or unknown field(s) {', '.join(odd)}")
        self._where, self._values = where, values

    def _get(self, name: str, expected: str, *types: type) -> Any:
        value = self._values[name]
        if type(value) not in types:
            raise DataError(f"{self._where}: {name} is {value!r:.80}, expected {expected}")
        return value

    def value(self, name: str) -> object:
        """Whatever it is."""
        return self._values[name]

    def text(self, name: str) -> str:
        """A text."""
        return str(self._get(name, "a text", str))

    def integer(self, name: str) -> int:
        """A whole number; a bool is none."""
        return int(self._get(name, "a whole number", int))

    def number(self, name: str) -> float:
        """A number; one too large for a float is infinite."""
        return _as_float(self._get(name, "a number", float, int))

    def items(self, name: str) -> list[Any]:
        """A list of anything."""
        return list(self._get(name, "a list", list))

    def texts(self, name: str) -> list[str]:
        """A list of texts."""
        values = self.items(name)
        if not all(isinstance(value, str) for value in values):
            raise DataError(f"{self._where}: {name} is {values!r:.80}, expected a list of texts")
        return values

    def pairs(self, name: str) -> tuple[tuple[float, float], ...]:
        """A list of [minimum, maximum]."""
        return tuple(self._as_pair(name, pair) for pair in self.items(name))

    def pair(self, name: str) -> tuple[float, float]:
        """[minimum, maximum]."""
        return self._as_pair(name, self._values[name])

    def _as_pair(self, name: str, pair: object) -> tuple[float, float]:
        if type(pair) is not list or len(pair) != 2 or not all(type(v) in (int, float) for v in pair):
            raise DataError(f"{self._where}: {name} holds {pair!r:.80}, expected [minimum, maximum]")
        return _as_float(pair[0]), _as_float(pair[1])

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of numbers."""
        values = self.items(name)
        if not all(type(value) in (int, float) for value in values):
            raise DataError(f"{self._where}: {name} is {values!r:.80}, expected a list of numbers")
        return tuple(map(_as_float, values))

    def number_rows(self, name: str) -> tuple[tuple[float, ...], ...]:
        """A list of lists of numbers."""
        rows = self.items(name)
        for row in rows:
            if type(row) is not list or not all(type(value) in (int, float) for value in row):
                raise DataError(f"{self._where}: {name} holds {row!r:.80}, expected a list of numbers")
        return tuple(tuple(map(_as_float, row)) for row in rows)

    def number_or_null(self, name: str) -> float | None:
        """A number, or nothing."""
        value = self._get(name, "a number or null", float, int, type(None))
        return None if value is None else _as_float(value)

    def whole_pairs(self, name: str) -> tuple[tuple[int, int], ...]:
        """A list of two whole numbers each."""
        values = self.items(name)
        for pair in values:
            if type(pair) is not list or len(pair) != 2 or not all(type(v) is int for v in pair):
                raise DataError(f"{self._where}: {name} holds {pair!r:.80}, expected two whole numbers")
        return tuple((first, second) for first, second in values)

    def settings(self, name: str) -> dict[str, str | int | float | bool | None]:
        """An object, whose values are not looked into."""
        values = self._get(name, "an object", dict)
        return dict(values)


def _as_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf  # refused later, with the field's name
