"""Responses: JSON, or text for shell scripts; the bytes of unsent answers are bounded, refusals outlast an upload."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kernelcast.runtime.errors import one_line
from kernelcast.runtime.json_text import json_text
from kernelcast.serve.pools import Busy

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
    """An error in one line."""
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
