"""Connections of the server: their number, and the time limits for sending a request and reading its answer."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from kernelcast.runtime.json_text import json_text
from kernelcast.serve.limits import Limits


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1, which waits without end for a request's head and for a client that does not read.

    A head has `head_s` from its first byte, and so has a new connection until that. Above `most` connections the
    longest idle one is closed: idle clients do not keep others out. Where none is idle, the new one is refused.
    """

    most: int
    head_s: float
    read_s: float
    _timer: asyncio.TimerHandle | None = None
    _reader: asyncio.TimerHandle | None = None
    _is_asking = False
    _idle_since_s = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection; close the longest idle one if there are too many."""
        super().connection_made(transport)
        self._wait(self.head_s)
        if len(self.connections) <= self.most:
            return
        idle = [
            one for one in self.connections if isinstance(one, Connection) and one.is_idle and one is not self
        ]
        if idle:
            oldest = min(idle, key=lambda one: one._idle_since_s)
            self.connections.discard(oldest)
            oldest.transport.abort()
        else:
            self._refuse(503, "Service Unavailable", f"{self.most} connections are open, expected fewer")

    def data_received(self, data: bytes) -> None:
        """Read what came. The time for a head begins with its first byte, and is not prolonged by more of them."""
        begins = self.is_idle and not self._is_asking
        super().data_received(data)
        if not self.is_idle:
            self._stop_waiting()
        elif begins and not self.transport.is_closing():
            self._wait(self.head_s)
            self._is_asking = True

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._wait(self.timeout_keep_alive)
        super().on_response_complete()
        if not self.is_idle:  # the next request had already arrived
            self._stop_waiting()

    def pause_writing(self) -> None:
        """A client that stopped reading its answer has `read_s` to go on."""
        super().pause_writing()
        self._reader = self.loop.call_later(self.read_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads on."""
        super().resume_writing()
        if self._reader is not None:
            self._reader.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timers."""
        self._stop_waiting()
        if self._reader is not None:
            self._reader.cancel()
        super().connection_lost(exc)

    def _wait(self, time_s: float) -> None:
        self._stop_waiting()
        self._idle_since_s = self.loop.time()
        self._timer = self.loop.call_later(time_s, self._expire)

    def _stop_waiting(self) -> None:
        self._is_asking = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        if self._is_asking and self.cycle is None:
            self._refuse(408, "Request Timeout", f"head did not come within {self.head_s:g} s")
        elif self.transport.get_write_buffer_size():
            self.transport.abort()  # the client does not read its answer
        else:
            self.transport.close()

    def _refuse(self, status: int, reason: str, text: str) -> None:
        body = json_text({"error": text}).encode()
        self.transport.write(
            f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        self.transport.close()


def connection_of(limits: Limits) -> type[Connection]:
    """The connections of a server with these limits."""
    values = {"most": limits.connections, "head_s": limits.head_s, "read_s": limits.time_s}
    return type("LimitedConnection", (Connection,), values)
