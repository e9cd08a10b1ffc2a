"""Serves a bundle on a socket until a signal stops it."""

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from starlette.routing import BaseRoute

from kernelcast.runtime.errors import KernelcastError
from kernelcast.serve.application import Application
from kernelcast.serve.http_server import serving
from kernelcast.serve.limits import Limits
from kernelcast.serve.listening import Listener
from kernelcast.serve.warm import Warm


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
    """Answer requests, also on the routes `pages`, until SIGTERM or SIGINT; SIGHUP reloads the bundle."""
    try:
        asyncio.run(_run(path, warm, listener, limits, environment, started, pages))
    finally:
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
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[None]] = set()

    def reload() -> None:
        task = loop.create_task(_reload(application))
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        await serving(application.asgi, limits, listener.socket, started)
    finally:
        application.close()


async def _reload(application: Application) -> None:
    with suppress(KernelcastError):  # logged
        await application.reload()
