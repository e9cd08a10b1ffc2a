"""Reading a request's body: JSON objects with known fields only, and what their fields may be."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from kernelcast.runtime.errors import UsageError, shown
from kernelcast.runtime.request.fields import REQUEST, renamed
from kernelcast.runtime.spelling import unknown_field


class BodyError(UsageError):
    """A body that is no JSON object (400); other UsageErrors are about fields of one (422)."""


def json_object(content: bytes) -> dict[str, Any]:
    """The JSON object that a body holds.

    Raises:
        BodyError: it is not UTF-8, not JSON, no object, or holds numbers that JSON does not have.
    """
    try:
        found = json.loads(content.decode("utf-8"), parse_constant=_no_number, object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise BodyError(f"body is not UTF-8 (byte {error.start}), expected a JSON object") from error
    except RecursionError as error:
        raise BodyError("body is nested too deeply, expected a JSON object") from error
    except ValueError as error:
        raise BodyError(f"body is not JSON ({error}), expected a JSON object") from error
    if not isinstance(found, dict):
        raise BodyError(f"body is {shown(found)}, expected a JSON object")
    return found


def _no_number(name: str) -> NoReturn:
    raise BodyError(f"body is not JSON ({name} is no number of JSON), expected a JSON object")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise BodyError("body has a field twice, expected each field once")
    return found


def known_fields(
    values: Mapping[str, Any], known: Iterable[str], *, may_be_null: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The fields by the names that they have now; only known ones, none null that may not be.

    Raises:
        UsageError: names the field.
    """
    names = tuple(known)
    found = renamed(values, REQUEST)
    for name, value in found.items():
        if name not in names:
            raise unknown_field(name, names)
        if value is None and name not in may_be_null:
            raise UsageError(f"{name} is null, expected a value; leave it out to have its default")
    return found


def require_field(values: Mapping[str, Any], name: str) -> Any:
    """The field's value.

    Raises:
        UsageError: it is missing.
    """
    if name not in values:
        raise UsageError(f"{name} is not given, expected it in the request")
    return values[name]
