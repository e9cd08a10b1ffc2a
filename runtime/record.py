"""Dataclasses as plain values and back: exactly their fields, of exactly their types."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, get_args, get_origin, get_type_hints

from kernelcast.runtime.errors import DataError, shown


class Record:
    """Base of dataclasses that files hold. `OPTIONAL` are fields that are left out where they have their default."""

    __slots__ = ()
    OPTIONAL: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON and TOML have them."""
        return record_values(self)

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Inverse of `to_dict`.

        Raises:
            DataError: a field is missing, unknown, of another type or out of bounds.
        """
        return read_record(cls, values)


R = TypeVar("R", bound=Record)


def record_values(record: Record) -> dict[str, Any]:
    """The fields of a record as plain values."""
    own = {one.name: one.default for one in fields(record)}  # type: ignore[arg-type]
    return {
        name: plain(getattr(record, name))
        for name, default in own.items()
        if name not in record.OPTIONAL or getattr(record, name) != default
    }


def plain(value: object) -> Any:
    """A value as JSON and TOML have it: records and mappings are tables, tuples are lists."""
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def read_record(kind: type[R], values: object, *, where: str = "", path: str = "") -> R:
    """A record of plain values. Errors begin with `where`, without it with the class's name in words; names of fields
    with `path`.

    Raises:
        DataError: a field is missing, unknown, of another type or out of bounds.
    """
    where = where or re.sub(r"(?<!^)([A-Z])", r" \1", kind.__name__).lower()
    if not isinstance(values, Mapping):
        raise DataError(f"{where}: expected a table, found {type(values).__name__}")
    known = _fields(kind)  # type: ignore[arg-type]  # classes are hashable
    for name in values:
        if name not in known:
            raise DataError(
                f"{where}: field {shown(f'{path}{name}')} is unknown, expected some of {', '.join(known)}"
            )
    found: dict[str, Any] = {}
    for name, field in known.items():
        if name in values:
            try:
                found[name] = field.read(values[name])
            except _OtherType as error:
                raise DataError(f"{where}: {path}{name} {error}") from None
            except DataError as error:
                raise DataError(f"{where}: {error}") from error
        elif name not in kind.OPTIONAL:
            raise DataError(f"{where}: {path}{name} is missing, expected {field.expected}")
    return kind(**found)


class _OtherType(Exception):
    """What was found and expected; begins with `is` or, of an item of a list, with `holds`."""


class _Type(NamedTuple):
    """A type of values: its name in words, and what reads a plain value."""

    expected: str
    read: Callable[[Any], Any]


@cache
def _fields(kind: type[Record]) -> dict[str, _Type]:
    types = get_type_hints(kind)
    return {one.name: _type(types[one.name]) for one in fields(kind)}  # type: ignore[arg-type]


@cache
def _type(kind: Any) -> _Type:
    arguments, origin = get_args(kind), get_origin(kind)
    if NoneType in arguments:
        [other] = (_type(one) for one in arguments if one is not NoneType)
        return _or_null(other)
    if origin is tuple:
        return _list(_type(arguments[0]), None if arguments[-1] is Ellipsis else len(arguments))
    if origin is not None:
        return _exactly("a table", dict)
    if issubclass(kind, Record):
        return _Type("a table", lambda value: value if isinstance(value, kind) else kind.from_dict(value))
    if issubclass(kind, Enum):
        return _choice(kind)
    if kind is float:
        return _exactly("a number", int, float, then=_as_float)
    return _exactly({str: "a text", int: "a whole number", bool: "true or false"}[kind], kind)


def _or_null(other: _Type) -> _Type:
    def read(value: Any) -> Any:
        try:
            return None if value is None else other.read(value)
        except _OtherType as error:
            raise _OtherType(f"{error} or null") from None

    return _Type(f"{other.expected} or null", read)


def _exactly(expected: str, *types: type, then: Callable[[Any], Any] = lambda value: value) -> _Type:
    def read(value: Any) -> Any:
        if type(value) not in types:
            raise _OtherType(f"is {shown(value)}, expected {expected}")
        return then(value)

    return _Type(expected, read)


def _list(item: _Type, length: int | None) -> _Type:
    one = item.expected.removeprefix("a ")
    several = re.sub("^list", "lists", one) if one.startswith("list of") else f"{one}s"
    expected = f"a list of {several}" if length is None else f"a list of {length} {several}"

    def read(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != (len(value) if length is None else length):
            raise _OtherType(f"is {shown(value)}, expected {expected}")
        try:
            return tuple(map(item.read, value))
        except _OtherType as error:
            raise _OtherType(re.sub("^is", "holds", str(error))) from None

    return _Type(expected, read)


def _choice(kind: type[Enum]) -> _Type:
    """A member by its value; one that is empty is not stated, and stands nowhere."""
    members = {one.value: one for one in kind if one.value}
    expected = " or ".join(members)

    def read(value: Any) -> Enum:
        if not isinstance(value, str) or value not in members:
            raise _OtherType(f"is {shown(value)}, expected {expected}")
        return members[value]

    return _Type(expected, read)


def _as_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf  # refused later, with the field's name
