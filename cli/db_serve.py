"""`kernelcast db serve`."""

import socket
from contextlib import suppress
from pathlib import Path

import click

from kernelcast.cli.options import database_argument, max_size_option
from kernelcast.runtime.errors import DataError, needs_extra


@click.command(short_help="Show a database in the browser, on this machine.")
@database_argument
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8001, show_default=True, help="0: any free one."
)
@max_size_option
def serve(database_path: Path, port: int, max_size_bytes: int) -> None:
    """Show a database in the browser, on this machine only, with the questions of docs/sql.md. Ctrl-C ends it.

    \b
    kernelcast db serve bench.db
    """
    with needs_extra("db serve", "datasette"):
        from kernelcast.store.serve import HOST, prepare, run
    application = prepare(database_path, max_size_bytes=max_size_bytes)
    free = _free_port(HOST, port)
    click.echo(f"{database_path}: http://{HOST}:{free}/ (Ctrl-C ends it)")
    with suppress(KeyboardInterrupt):  # the way to end it
        run(application, free)


def _free_port(host: str, port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise DataError(f"port {port}: {error.strerror}; expected a free one (--port)") from error
        return int(probe.getsockname()[1])
