"""The canonical form in which values are stored and digested, so that ids can be verified.

Times in microseconds have three decimals and times in seconds nine: whole nanoseconds, finer than any
profiler's clock. JSON has sorted keys and no spaces. Moments are UTC, ISO-8601, with milliseconds and a Z.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, ClassVar

from kernelcast.runtime.bundle.fingerprint import canonical_json, content_digest
from kernelcast.runtime.errors import UsageError

_US_DECIMALS = 3
_S_DECIMALS = 9
_EMPTY: tuple[Any, ...] = ("", [], (), {})


def _rounded(value: float, decimals: int, name: str) -> float:
    if not math.isfinite(value):
        raise UsageError(f"{name}: found {value}, expected a finite number")
    return round(float(value), decimals) + 0.0  # + 0.0 turns -0.0 into 0.0, which digests differently


def rounded_us(value: float, name: str) -> float:
    """A time in microseconds, in whole nanoseconds."""
    return _rounded(value, _US_DECIMALS, name)


def rounded_s(value: float, name: str) -> float:
    """A time in seconds, in whole nanoseconds."""
    return _rounded(value, _S_DECIMALS, name)


def rounded_ratio(value: float, name: str) -> float:
    """A number without unit, to nine decimals."""
    return _rounded(value, _S_DECIMALS, name)


def plain_mapping(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """`values` after a round trip through JSON: plain types, sorted string keys.

    Raises:
        UsageError: a value has no JSON form.
    """
    try:
        plain: dict[str, Any] = json.loads(canonical_json(dict(values)))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name}: not expressible as JSON ({error})") from error
    return plain


def utc_now() -> str:
    """The current time in the stored form, such as `2026-01-31T08:15:00.250Z`."""
    return _utc_text(datetime.now(UTC))


def utc_moment(text: str, name: str) -> str:
    """An ISO-8601 moment with offset or Z, in the stored form.

    Raises:
        UsageError: not ISO-8601, or without an offset.
    """
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


class Record:
    """A row of `table`; its id is the digest of all fields."""

    __slots__ = ()
    table: ClassVar[str]

    @property
    def id(self) -> str:
        """Digest of all fields."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]  # is a dataclass
        return record_digest(self.table, values)
