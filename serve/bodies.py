"""Request bodies: their bytes within limits, as JSON objects with known fields."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from starlette.exceptions import HTTPException
from starlette.requests import Request

from kernelcast.runtime.errors import UsageError, shown
from kernelcast.runtime.request.fields import REQUEST, renamed
from kernelcast.runtime.spelling import unknown_field
from kernelcast.serve.limits import Limits
from kernelcast.serve.responses import media_type


class TooLarge(HTTPException):
    """A body above the size limit; answered while the client still sends it (`Lingering`)."""


async def content_of(request: Request, media: str, limits: Limits) -> bytes:
    """The request's body; refused if its content type is wrong, or if it is too large. A slow one ends its connection.

    Raises:
        HTTPException: 413 or 415.
    """
    found = media_type(request)
    if found != media:
        raise HTTPException(415, f"content type is {found!r:.80}, expected {media}")
    most = limits.max_body_bytes
    too_large = TooLarge(413, f"body is too large, expected at most {most} bytes")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > most):
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise too_large
        parts.append(part)
    return b"".join(parts)


class BodyError(UsageError):
    """A body that is not a JSON object (400); other UsageErrors concern its fields (422)."""


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
    """The fields by their present names; unknown fields and unexpected nulls are refused.

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
