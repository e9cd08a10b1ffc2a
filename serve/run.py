"""Serves a bundle on a socket until a signal stops it."""

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn
from starlette.routing import BaseRoute

from kernelcast.runtime.errors import KernelcastError
from kernelcast.serve.application import Application
from kernelcast.serve.connections import Connection, connection_of
from kernelcast.serve.limits import Limits
from kernelcast.serve.listening import Listener
from kernelcast.serve.warm import Warm

_STOP = (signal.SIGTERM, signal.SIGINT)
# Compute threads release the interpreter lock after this time, so that /health is answered in time.
_SWITCH_S = 0.001
_KEEP_ALIVE_S = 75
_MAX_HEAD_BYTES = 16_384
_MARGIN_S = 5  # for tasks to end after their connections


class _Server(uvicorn.Server):
    """Leaves signals to `run`: uvicorn would end the process by the signal that it caught.

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


def run(
    path: Path,
    warm: Warm,
    listener: Listener,
    limits: Limits,
    *,
    environment: Mapping[str, str],
    started: Callable[[], None],
    pages: Sequence[BaseRoute] = (),
) -> None:
    """Answer requests until SIGTERM or SIGINT, which let running requests finish. SIGHUP reloads the bundle.

    `started` is called when requests are answered from now on; `pages` are routes in addition to the server's own.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        asyncio.run(_run(path, warm, listener, limits, environment, started, pages))
    finally:
        sys.setswitchinterval(before)
        listener.close()


async def _run(
    path: Path,
    warm: Warm,
    listener: Listener,
    limits: Limits,
    environment: Mapping[str, str],
    started: Callable[[], None],
    pages: Sequence[BaseRoute],
) -> None:
    application = Application(
        path,
        warm,
        limits,
        environment=environment,
        can_reload=listener.is_unix,
        is_local=listener.is_local,
        pages=pages,
    )
    server = _Server(_configuration(application, limits))
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[None]] = set()

    def stop() -> None:
        server.should_exit = True

    def reload() -> None:
        task = loop.create_task(_reload(application))
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    for number in _STOP:
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        serving = loop.create_task(server.serve(sockets=[listener.socket]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            started()
        await serving
    finally:
        application.close()


async def _reload(application: Application) -> None:
    with suppress(KernelcastError):  # logged
        await application.reload()


def _configuration(application: Application, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        application.asgi,
        loop="asyncio",
        http=connection_of(limits),  # h11: slower than httptools, which takes request heads of any size
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(limits.time_s)) + _MARGIN_S,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
    )
