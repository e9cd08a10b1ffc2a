"""Typed access to a JSON object that must have exactly the fields expected."""

import math
from collections.abc import Sequence
from typing import Any

from kernelcast.runtime.errors import DataError


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
        values = self.items(name)
        for pair in values:
            if type(pair) is not list or len(pair) != 2 or not all(type(v) in (int, float) for v in pair):
                raise DataError(f"{self._where}: {name} holds {pair!r:.80}, expected [minimum, maximum]")
        return tuple((_as_float(low), _as_float(high)) for low, high in values)

    def settings(self, name: str) -> dict[str, str | int | float | bool | None]:
        """An object, whose values are not looked into."""
        values = self._get(name, "an object", dict)
        return dict(values)


def _as_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf  # refused later, with the field's name
