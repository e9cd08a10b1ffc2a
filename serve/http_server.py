"""uvicorn with limited connections, which a signal stops: the server of `serve`, `explore` and `db serve`."""

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import uvicorn

from kernelcast.serve.connections import Connection, connection_of
from kernelcast.serve.limits import Limits
from kernelcast.serve.listening import BACKLOG

_STOP = (signal.SIGTERM, signal.SIGINT)
# Compute threads release the interpreter lock after this time, so that /health is answered in time.
_SWITCH_S = 0.001
_KEEP_ALIVE_S = 75
_MAX_HEAD_BYTES = 16_384
_ACCEPTED_AT_ONCE = 16  # asyncio accepts all that wait before it reads what one sent
_MARGIN_S = 5  # for tasks to end after their connections


class Server(uvicorn.Server):
    """Leaves signals to `serving`: uvicorn would end the process by the signal that it caught.

    When it stops, clients that are still reading their answer get the usual time for it. uvicorn itself would cancel
    the sending tasks then, and print a traceback.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; connections that are still open after the given time are closed."""

        def end() -> None:
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.transport.abort()

        given_s = (self.config.timeout_graceful_shutdown or _MARGIN_S) - _MARGIN_S
        timer = asyncio.get_running_loop().call_later(given_s, end)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serving(
    asgi: Any,
    limits: Limits,
    listening: socket.socket,
    started: Callable[[], None],
    *,
    lifespan: Literal["on", "off"] = "off",
) -> None:
    """Answer requests on a socket until SIGTERM or SIGINT, which let running requests finish.

    `started` is called when requests are answered from now on. Sets the interpreter's interval of switching threads.
    """
    config = uvicorn.Config(
        asgi,
        loop="asyncio",
        http=connection_of(limits),  # h11: slower than httptools, which takes request heads of any size
        ws="none",
        lifespan=lifespan,
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        backlog=_ACCEPTED_AT_ONCE,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(limits.time_s)) + _MARGIN_S,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
    )
    server = Server(config)

    def stop() -> None:
        server.should_exit = True

    loop, before = asyncio.get_running_loop(), sys.getswitchinterval()
    for number in _STOP:
        loop.add_signal_handler(number, stop)
    sys.setswitchinterval(_SWITCH_S)
    try:
        task = loop.create_task(server.serve(sockets=[listening]))
        while not server.started and not task.done():
            await asyncio.sleep(0.01)
        if server.started:
            listening.listen(BACKLOG)  # the kernel's queue, which asyncio has set to the other number
            started()
        await task
    finally:
        sys.setswitchinterval(before)
