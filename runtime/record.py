"""Dataclasses as plain values and back: exactly their fields, each of its type and within its bounds.

The one reader of TOML and JSON into dataclasses. Annotations give the types and bounds of fields:
`rows: Annotated[int, at_least(1)]`.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import Enum
from functools import cache
from types import NoneType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from kernelcast.runtime.dataclass import MISSING, dataclass, fields
from kernelcast.runtime.errors import DataError, KernelcastError, either, unknown_field
from kernelcast.runtime.json_text import plain

WITH_DEFAULT = ("*",)
"""In place of the names of `OPTIONAL`: every field that has a default."""


@runtime_checkable
class Bound(Protocol):
    """Which values of a type are accepted, and in words."""

    @property
    def expected(self) -> str: ...

    def accepts(self, value: Any, /) -> object: ...


@dataclass(frozen=True, slots=True)
class Check:
    """A bound by a function."""

    accepts: Callable[[Any], object]
    expected: str


def at_least(low: float) -> Check:
    """Finite numbers from `low`."""
    return Check(lambda value: low <= value < math.inf, f"at least {low:g}")


def above(low: float) -> Check:
    """Finite numbers above `low`."""
    return Check(lambda value: low < value < math.inf, f"a number above {low:g}")


def between(low: float, high: float) -> Check:
    """Numbers from `low` to `high`."""
    return Check(lambda value: low <= value <= high, f"{low:g} to {high:g}")


def one_of(values: Iterable[str]) -> Check:
    """Some texts."""
    known = tuple(values)
    return Check(lambda value: value in known, either(known))


HEX = Check(re.compile("[0-9a-f]+").fullmatch, "hex digits")
NAME = Check(re.compile("[A-Za-z0-9_.+-]+").fullmatch, "a name such as float32")
ONE_LINE = Check(lambda text: bool(text) and text.isprintable(), "a text on one line")
FRACTION = Check(at_least(0).accepts, "a fraction, 0 or more")


def _is_moment(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


MOMENT = Check(_is_moment, "ISO 8601 with a time zone")


class Record:
    """Base of dataclasses in files, checked by bounds (DataError); `OPTIONAL` fields are left out at their default."""

    __slots__ = ()
    OPTIONAL: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name, bound in _bounds(type(self)):  # type: ignore[arg-type]  # classes are hashable
            value = getattr(self, name)
            if value is not None:
                self.require(name, bound.accepts(value), bound.expected)

    def require(self, name: str, holds: object, expected: str) -> None:
        """Refuse the value of a field; DataError where it does not hold."""
        if not holds:
            raise DataError(field=name, found=getattr(self, name), expected=expected)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON and TOML have them."""
        return record_values(self)

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Inverse of `to_dict`; DataError for a field that is missing, unknown, of another type or out of bounds."""
        return read_record(cls, values)


R = TypeVar("R", bound=Record)


def record_values(record: Record) -> dict[str, Any]:
    """The fields of a record as plain values."""
    optional = _optional(type(record))  # type: ignore[arg-type]
    return {
        one.name: plain(getattr(record, one.name))
        for one in fields(record)  # type: ignore[arg-type]
        if one.name not in optional or getattr(record, one.name) != optional[one.name]
    }


def read_record(kind: type[R], values: object) -> R:
    """A record of plain values; DataError for a field that is missing, unknown, of another type or out of bounds."""
    found, optional = read_fields(kind, values), _optional(kind)  # type: ignore[arg-type]
    for name, value_type in _types(kind).items():  # type: ignore[arg-type]
        if name not in found and name not in optional:
            raise DataError(field=name, expected=value_type.expected)
    return kind(**found)


def read_fields(kind: type[Record], values: object) -> dict[str, Any]:
    """Given values of some fields of a record, checked by its bounds; DataError for an unknown one or another type."""
    if not isinstance(values, Mapping):
        raise DataError(found=values, expected="a table")
    types = _types(kind)  # type: ignore[arg-type]
    check_names(values, types)
    return {name: _read_at(name, types[name], value) for name, value in values.items()}


def check_names(values: Iterable[Any], known: Iterable[str]) -> None:
    """Check the names of a table's fields; DataError where one is unknown; suggests the nearest."""
    names = list(known)
    for name in values:
        if name not in names:
            raise DataError.of(unknown_field(name, names))


class _Type(NamedTuple):
    """A type of values: one and several of them in words, and what reads a plain value."""

    expected: str
    several: str
    read: Callable[[Any], Any]


def _read_at(key: str | int, value_type: _Type, value: object) -> Any:
    try:
        return value_type.read(value)
    except KernelcastError as error:
        error.at(key)
        raise


@cache
def _types(kind: Any) -> dict[str, _Type]:
    types = get_type_hints(kind)
    return {one.name: _type(types[one.name]) for one in fields(kind)}


@cache
def _bounds(kind: Any) -> tuple[tuple[str, Bound], ...]:
    """Bounds of the fields that have one."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        (one.name, bound)
        for one in fields(kind)
        for bound in getattr(hints[one.name], "__metadata__", ())
        if isinstance(bound, Bound)
    )


@cache
def _optional(kind: Any) -> dict[str, Any]:
    """Defaults of the fields that may be left out."""
    return {
        one.name: one.default if one.default_factory is MISSING else one.default_factory()
        for one in fields(kind)
        if one.name in kind.OPTIONAL
        or (kind.OPTIONAL is WITH_DEFAULT and (one.default, one.default_factory) != (MISSING, MISSING))
    }


@cache
def _type(kind: Any) -> _Type:
    arguments, origin = get_args(kind), get_origin(kind)
    if origin is Annotated:
        return _type(arguments[0])
    if kind is Any:
        return _Type("a value", "values", lambda value: value)
    if NoneType in arguments:
        others = [one for one in arguments if one is not NoneType]
        return _or_null(_type(others[0])) if len(others) == 1 else _type(Any)
    if origin is tuple:
        return _list(_type(arguments[0]), None if arguments[-1] is Ellipsis else len(arguments))
    if origin is Literal:
        return _choice({one: one for one in arguments})
    if origin is not None:
        return _table(_type(arguments[1]))
    if issubclass(kind, Record):
        return _Type(
            "a table", "tables", lambda value: value if isinstance(value, kind) else kind.from_dict(value)
        )
    if issubclass(kind, Enum):
        # A member without a text means that nothing is stated, and stands nowhere.
        return _choice({one.value: one for one in kind if one.value})
    if kind is float:
        return _Type("a number", "numbers", _exactly("a number", int, float, then=_as_float))
    one, several = {
        str: ("a text", "texts"),
        int: ("a whole number", "whole numbers"),
        bool: ("true or false", "true or false"),
    }.get(kind, (f"a {kind.__name__}", f"{kind.__name__}s"))
    return _Type(one, several, _exactly(one, kind))


def _or_null(other: _Type) -> _Type:
    expected = f"{other.expected} or null"

    def read(value: Any) -> Any:
        try:
            return None if value is None else other.read(value)
        except KernelcastError as error:
            if not error.steps:  # the value itself, not one inside of it
                error.expected = expected
            raise

    return _Type(expected, f"{other.several} or null", read)


def _exactly(
    expected: str, *types: type, then: Callable[[Any], Any] = lambda value: value
) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) not in types:
            raise DataError(found=value, expected=expected)
        return then(value)

    return read


def _list(item: _Type, length: int | None) -> _Type:
    expected = f"a list of {item.several}" if length is None else f"a list of {length} {item.several}"

    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple) or (length is not None and len(value) != length):
            raise DataError(found=value, expected=expected)
        return tuple(_read_at(index, item, one) for index, one in enumerate(value))

    return _Type(expected, f"lists of {item.several}", read)


def _table(item: _Type) -> _Type:
    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise DataError(found=value, expected="a table")
        return {name: _read_at(name, item, one) for name, one in value.items()}

    return _Type("a table", "tables", read)


def _choice(members: Mapping[str, Any]) -> _Type:
    expected = either(members)

    def read(value: Any) -> Any:
        if not isinstance(value, str) or value not in members:
            raise DataError(found=value, expected=expected)
        return members[value]

    return _Type(expected, f"texts ({expected})", read)


def _as_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf  # refused later, with the field's name
