"""Answers that clients have not read yet: bounded by their size together."""

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kernelcast.serve.pools import Busy

_PIECE_BYTES = 1 << 16


class Unread:
    """Counts the bytes of answers from when they are there until they are sent. For one thread."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0

    def response(self, content: bytes, media: str) -> Response:
        """A response with this content.

        Raises:
            Busy: clients have not read too much already.
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
