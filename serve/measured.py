"""Metrics of every request, whatever answers it."""

from contextlib import suppress
from time import perf_counter

from h11 import LocalProtocolError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kernelcast.serve.metrics import Metrics

CLIENT_GONE = 499
"""Status of requests whose client went away before the answer, in the figures alone."""


class Measured:
    """Counts and times requests; paths that are not ours count as one."""

    def __init__(self, inner: ASGIApp, metrics: Metrics, paths: set[str]) -> None:
        self._inner, self._metrics, self._paths = inner, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._inner(scope, receive, send)
        begin, status = perf_counter(), CLIENT_GONE

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            # What the client sent behind its request may have ended the connection: nobody is there to be answered.
            with suppress(LocalProtocolError):
                await send(message)

        path = scope["path"] if scope["path"] in self._paths else "other"
        try:
            await self._inner(scope, receive, noting)
        finally:
            self._metrics.requests.labels(path, status).inc()
            self._metrics.seconds.labels(path).observe(perf_counter() - begin)
        return None
