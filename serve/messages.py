"""Requests and responses: bodies within limits, JSON, text for shell scripts, and what browsers here may ask.

The bytes of unsent answers are bounded, and refusals outlast an upload.
"""

import asyncio
import ipaddress
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kernelcast.runtime.errors import UsageError, one_line, shown, unknown_field
from kernelcast.runtime.json_text import json_text
from kernelcast.runtime.request.fields import REQUEST, renamed
from kernelcast.serve.limits import Busy, Limits

JSON, TEXT, HTML = "application/json", "text/plain", "text/html"


def media_type(request: Request) -> str:
    """The content type of a request's body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def json_bytes(values: Mapping[str, Any]) -> bytes:
    """JSON in ASCII; other characters are escaped."""
    return json_text(values).encode()


def text_bytes(text: str) -> bytes:
    """UTF-8; lone surrogates are escaped."""
    return text.encode("utf-8", errors="backslashreplace")


def json_error(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json_bytes({"error": one_line(text)}), status, headers, JSON)


def text_error(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error as clients that are shell scripts read it: no limit on the first line, then why."""
    return Response(text_bytes(f"\nkernelcast: error: {one_line(text)}\n"), status, headers, TEXT)


_PIECE_BYTES = 1 << 16


class Unread:
    """Counts the bytes of answers that are ready but not yet sent. Not thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0

    def response(self, content: bytes, media: str) -> Response:
        """A response with this content.

        Raises:
            Busy: the unsent answers are too large already.
        """
        if self._bytes and self._bytes + len(content) > self._most_bytes:
            raise Busy(f"{self._bytes} bytes of answers are not read yet, expected fewer")
        self._bytes += len(content)
        return _Counted(content, media, self)

    def _drop(self, size: int) -> None:
        self._bytes -= size


class _Counted(Response):
    def __init__(self, content: bytes, media: str, unread: Unread) -> None:
        super().__init__(content, media_type=media)
        self._unread = unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        try:
            await send(start)
            # In pieces: each waits until the client has read most of those before.
            for first in range(0, len(self.body), _PIECE_BYTES):
                piece = self.body[first : first + _PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._unread._drop(len(self.body))


_MOST_BYTES = 64 << 20
_TIME_S = 5.0


class Lingering(Response):
    """Sends a refusal, then goes on reading the upload for a while.

    A connection that closes before the client has sent all is reset, and the client reads no answer (RFC 9112, section
    9.6).
    """

    def __init__(self, refusal: Response, receive: Receive) -> None:
        super().__init__(refusal.body, refusal.status_code)
        self.raw_headers = [*refusal.raw_headers, (b"connection", b"close")]
        self._receive = receive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, then discard incoming bytes for at most 5 s and 64 MiB."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(_TIME_S):
                await self._drop()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _drop(self) -> None:
        dropped = 0
        while dropped <= _MOST_BYTES:
            message = await self._receive()
            if message["type"] != "http.request" or not message.get("more_body", False):
                return
            dropped += len(message.get("body", b""))


_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::[0-9]{0,5})?")
_OWN = ("same-origin", "none")


class OfThisMachine:
    """Refuses requests that pages of other sites make, also GET: they would start work, if not read the answer.

    A browser says where a request comes from (Sec-Fetch-Site: `none` is its address bar). By DNS rebinding a page has
    the server's own origin, but then Host names another machine.
    """

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for name, value in scope.get("headers", ()) if scope["type"] == "http" else ():
            text = value.decode("latin-1")
            if name == b"host" and not _names_this_machine(text):
                error = json_error(400, f"Host is {shown(text)}, expected localhost or 127.0.0.1")
                return await error(scope, receive, send)
            if name == b"sec-fetch-site" and text.strip().lower() not in _OWN:
                error = json_error(403, f"Sec-Fetch-Site is {shown(text)}, expected a page of this server")
                return await error(scope, receive, send)
        return await self._inner(scope, receive, send)


def _names_this_machine(host: str) -> bool:
    """Whether a Host header is localhost or a loopback address, with any port (one may be forwarded).

    A browser that was told that another name has the address 127.0.0.1 (DNS rebinding) sends that other name.
    """
    found = _HOST.fullmatch(host.strip())
    if found is None:
        return False
    name = found["name"].strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


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
            raise UsageError(f"{name} is null, expected a value; omit it for its default")
    return found


def require_field(values: Mapping[str, Any], name: str) -> Any:
    """The field's value.

    Raises:
        UsageError: it is missing.
    """
    if name not in values:
        raise UsageError(f"{name} is not given in the request")
    return values[name]
