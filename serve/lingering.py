"""An answer to a request that is still being sent."""

import asyncio
from contextlib import suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_MOST_BYTES = 64 << 20
_TIME_S = 5.0


class Lingering(Response):
    """Sends a refusal, then reads on for a while.

    A connection that closes before the client has sent all is reset, and the client reads no answer (RFC 9112, section
    9.6).
    """

    def __init__(self, refusal: Response, receive: Receive) -> None:
        super().__init__(refusal.body, refusal.status_code)
        self.raw_headers = [*refusal.raw_headers, (b"connection", b"close")]
        self._receive = receive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, then drop what comes, for at most 5 s and 64 MiB."""
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
