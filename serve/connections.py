"""Connections of servers: their number, the times for sending a request and reading its answer, and odd framing."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from kernelcast.runtime.json_text import json_text
from kernelcast.serve.limits import Limits

_SPARE_CHUNKS, _LEAST_CHUNK_BYTES = 256, 64
_BODY_BYTES_PER_S = 16 << 10
_MAX_HEAD_BYTES = 16 << 10


class _Parser(h11.Connection):
    """h11's parser without what others read differently, and without floods of small chunks, each as costly as a large.

    A request with both Content-Length and Transfer-Encoding may be two requests to a proxy (RFC 9112, section 6.1).
    """

    body_bytes = _chunks = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.body_bytes = self._chunks = 0
            framing = {name for name, _ in event.headers} & {b"content-length", b"transfer-encoding"}
            if len(framing) == 2 or (b"transfer-encoding" in framing and event.http_version < b"1.1"):
                raise h11.RemoteProtocolError("two lengths of a body")
        elif isinstance(event, h11.Data):
            self.body_bytes += len(event.data)
            self._chunks += event.chunk_start
            if self._chunks > _SPARE_CHUNKS + self.body_bytes / _LEAST_CHUNK_BYTES:
                raise h11.RemoteProtocolError("small chunks")
        return event


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1, which waits without end for a request and for a client that does not read.

    A head has `head_s` from its first byte, and so has a new connection until that. A body has `body_s`, and longer at
    16 KiB/s or more. Above `most` connections the one that has waited longest for its client is closed: clients that
    do not ask, send or read keep no others out. Where all are being answered, the new one is refused.
    """

    most: int
    head_s: float
    body_s: float
    read_s: float
    _timer: asyncio.TimerHandle | None = None
    _reader: asyncio.TimerHandle | None = None
    _is_asking = False
    _waits_since_s = 0.0

    def __init__(self, *args: Any, **others: Any) -> None:
        super().__init__(*args, **others)
        self.conn = _Parser(h11.SERVER, _MAX_HEAD_BYTES)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being sent or answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_sending(self) -> bool:
        """Whether a request's head came, and its body not wholly."""
        return not self.is_idle and bool(self.cycle.more_body)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection; close the one that has waited longest if there are too many."""
        super().connection_made(transport)
        self._wait(self.head_s)
        if len(self.connections) <= self.most:
            return
        waiting = [
            one
            for one in self.connections
            if isinstance(one, Connection)
            and (one.is_idle or one.is_sending or one._reader is not None)
            and one is not self
        ]
        if waiting:
            oldest = min(waiting, key=lambda one: one._waits_since_s)
            self.connections.discard(oldest)
            oldest.transport.abort()
        else:
            self._refuse(503, "Service Unavailable", f"{self.most} connections are open, expected fewer")

    def data_received(self, data: bytes) -> None:
        """Read what came. The time for a head begins with its first byte, and is not prolonged by more of them."""
        begins, was_sending = self.is_idle and not self._is_asking, self.is_sending
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self.is_sending:
            if not was_sending:
                self._wait(self.body_s)
        elif not self.is_idle:
            self._stop_waiting()
        elif begins:
            self._wait(self.head_s)
            self._is_asking = True

    def on_response_complete(self) -> None:
        self._wait(self.timeout_keep_alive)
        super().on_response_complete()
        if self.is_sending:  # the next request had already arrived
            self._wait(self.body_s)
        elif not self.is_idle:
            self._stop_waiting()

    def pause_writing(self) -> None:
        """A client that stopped reading its answer has `read_s` to go on."""
        super().pause_writing()
        self._waits_since_s = self.loop.time()
        self._reader = self.loop.call_later(self.read_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._reader is not None:
            self._reader.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, also in the middle of a body, and end the connection."""
        self._refuse(400, "Bad Request", msg)

    def _wait(self, time_s: float) -> None:
        self._stop_waiting()
        self._waits_since_s = self.loop.time()
        self._timer = self.loop.call_later(time_s, self._expire)

    def _stop_waiting(self) -> None:
        self._is_asking = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        if self.is_sending:
            allowed_s = self.body_s + self.conn.body_bytes / _BODY_BYTES_PER_S  # type: ignore[attr-defined]
            left_s = self._waits_since_s + allowed_s - self.loop.time()
            if left_s > 0:
                self._timer = self.loop.call_later(left_s, self._expire)
            else:
                self._refuse(408, "Request Timeout", f"body did not come within {allowed_s:.3g} s")
        elif self._is_asking and self.cycle is None:
            self._refuse(408, "Request Timeout", f"head did not come within {self.head_s:g} s")
        elif self.transport.get_write_buffer_size():
            self.transport.abort()  # the client does not read its answer
        else:
            self.transport.close()

    def _refuse(self, status: int, reason: str, text: str) -> None:
        if not self.is_idle:
            if self.cycle.response_started:
                self.transport.abort()
                return
            self.cycle.disconnected = True  # nothing more is written
            self.cycle.message_event.set()
        body = json_text({"error": text}).encode()
        self.transport.write(
            f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        self.transport.close()


def connection_of(limits: Limits) -> type[Connection]:
    values = {
        "most": limits.connections,
        "head_s": limits.head_s,
        "body_s": limits.body_s,
        "read_s": limits.time_s,
    }
    return type("LimitedConnection", (Connection,), values)
