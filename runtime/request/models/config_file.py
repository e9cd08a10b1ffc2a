"""Typed access to the fields of a Hugging Face `config.json`; null counts as absent."""

from collections.abc import Iterator, Mapping
from typing import Any

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.request.field_types import FLAG, FieldType, choice, number, whole
from kernelcast.runtime.request.fields import MAX_SIZE

_WHOLE, _NOT_NEGATIVE = whole(1, MAX_SIZE), whole(0, MAX_SIZE)
_SHARE = number(0, 1, "a number above 0 and at most 1", above=True)


@dataclass(frozen=True, slots=True)
class Config:
    """The fields of a configuration. Of several names, the first present one counts."""

    values: Mapping[str, Any]

    def has(self, *names: str) -> bool:
        """Whether any of these fields is present."""
        return any(self.values.get(name) is not None for name in names)

    def read(self, names: tuple[str, ...], kind: FieldType) -> Any:
        """The value of a field, None where it is absent; UsageError where it is not of this kind."""
        for name in names:
            value = self.values.get(name)
            if value is not None:
                kind.check(name, value)
                return value
        return None

    def needed(self, names: tuple[str, ...], kind: FieldType) -> Any:
        """The value of a required field; UsageError where it is absent or not of this kind."""
        value = self.read(names, kind)
        if value is None:
            raise UsageError(f"field {names[0]} is missing, expected {kind.expected}")
        return value

    def size(self, *names: str, default: int | None = None) -> int:
        """A positive whole number; needed without a default."""
        if default is None:
            return int(self.needed(names, _WHOLE))
        found = self.read(names, _NOT_NEGATIVE if default == 0 else _WHOLE)
        return default if found is None else int(found)

    def flag(self, *names: str, default: bool) -> bool:
        """True or false."""
        found = self.read(names, FLAG)
        return default if found is None else bool(found)

    def share(self, *names: str) -> float:
        """A number above 0 and at most 1, which it is where it is absent."""
        found = self.read(names, _SHARE)
        return 1.0 if found is None else float(found)

    def one_of(self, names: tuple[str, ...], allowed: tuple[str, ...], default: str) -> str:
        """One of some texts."""
        found = self.read(names, choice(allowed))
        return default if found is None else str(found)

    def table(self, name: str) -> "Config":
        """A nested table, empty where it is absent."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            raise UsageError(field=name, found=value, expected="a table or null")
        return Config(value or {})

    def tables(self, *names: str) -> Iterator["Config"]:
        """Nested tables, and those in them."""
        for name in names:
            table = self.table(name)
            yield table
            yield from (Config(value) for value in table.values.values() if isinstance(value, dict))

    def items(self, name: str) -> list[Any] | None:
        """A list, None where it is absent or empty."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, list):
            raise UsageError(field=name, found=value, expected="a list or null")
        return value or None
