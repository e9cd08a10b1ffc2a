"""The canonical form in which values are stored and digested, so that ids can be verified.

Times in microseconds have three decimals and times in seconds nine: whole nanoseconds, finer than any
profiler's clock. JSON has sorted keys and no spaces. Moments are UTC, ISO-8601, with milliseconds and a Z.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from enum import EnumType
from functools import cache, partial
from typing import Any, ClassVar

from kernelcast.runtime.bundle.fingerprint import canonical_json, content_digest
from kernelcast.runtime.errors import UsageError

_US_DECIMALS = 3
_S_DECIMALS = 9
_EMPTY: tuple[Any, ...] = ("", [], (), {})


def rounded(value: float, name: str, *, decimals: int = _US_DECIMALS) -> float:
    """A finite number in the stored form: of µs whole nanoseconds, else with `decimals`."""
    if not math.isfinite(value):
        raise UsageError(f"{name}: found {value}, expected a finite number")
    return round(float(value), decimals) + 0.0  # + 0.0 turns -0.0 into 0.0, which digests differently


def plain_mapping(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """`values` after a round trip through JSON: plain types, sorted string keys; UsageError without a JSON form."""
    try:
        plain: dict[str, Any] = json.loads(canonical_json(dict(values)))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name}: not expressible as JSON ({error})") from error
    return plain


def utc_now() -> str:
    """The current time in the stored form, such as `2026-01-31T08:15:00.250Z`."""
    return _utc_text(datetime.now(UTC))


def future_problem(row: Mapping[str, Any]) -> str | None:
    """The moment of a row that is more than a day from now, which no clock or time zone explains, or None."""
    latest = _utc_text(datetime.now(UTC) + timedelta(days=1))
    found = [name for name, value in row.items() if name.endswith("_at") and str(value or "") > latest]
    return f"{found[0]} is {row[found[0]]}, expected no future moment" if found else None


def utc_moment(text: str, name: str) -> str:
    """An ISO-8601 moment with offset or Z, in the stored form; UsageError for any other text."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{name}: found {text!r}, expected an ISO-8601 moment") from error
    if moment.tzinfo is None:
        raise UsageError(
            f"{name}: found {text!r} without an offset, expected UTC such as 2026-01-31T08:15:00Z"
        )
    return _utc_text(moment.astimezone(UTC))


def _utc_text(moment: datetime) -> str:
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def record_digest(record: str, values: Mapping[str, Any]) -> str:
    """Id of a record: the digest of its table and of every field that is not None or empty.

    A later schema can therefore add a field without changing ids of existing rows.
    """
    meaning = {name: value for name, value in values.items() if value is not None and value not in _EMPTY}
    return content_digest({"record": record, **meaning})


def canonicalise(record: object, about: str) -> None:
    """Bring the fields of a frozen dataclass into the canonical form, which follows from their types and names.

    A UsageError names `about` and the field without one; ValueError where a value is not in the field's enumeration.
    """
    for name, form in _forms(type(record)):  # type: ignore[arg-type]  # a class is hashable
        if (value := getattr(record, name)) is not None:
            object.__setattr__(record, name, form(value, f"{about} {name}"))


@cache
def _forms(record: Any) -> tuple[tuple[str, Callable[[Any, str], Any]], ...]:
    """Fields with a canonical form, and the functions of value and name that give it."""
    found = ((field.name, _form(field.name, field.type)) for field in fields(record))
    return tuple((name, form) for name, form in found if form is not None)


def _form(field: str, kind: Any) -> Callable[[Any, str], Any] | None:
    if field.endswith("_at"):
        return utc_moment
    if isinstance(kind, EnumType):
        return lambda value, _: kind(value)
    number = rounded if field.endswith("_us") else partial(rounded, decimals=_S_DECIMALS)
    forms: dict[Any, Callable[[Any, str], Any]] = {
        float: number,
        float | None: number,
        tuple[float, ...]: lambda values, name: tuple(number(value, name) for value in values),
        Mapping[str, float]: lambda values, name: {
            key: number(values[key], f"{name} {key}") for key in sorted(values)
        },
        Mapping[str, Any]: plain_mapping,
        tuple[Mapping[str, Any], ...]: lambda values, name: tuple(plain_mapping(v, name) for v in values),
    }
    return forms.get(kind)


class Record:
    """A row of `table`; its id is the digest of all fields."""

    __slots__ = ()
    table: ClassVar[str]

    def __post_init__(self) -> None:
        canonicalise(self, self.table)

    @property
    def id(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]  # is a dataclass
        return record_digest(self.table, values)
