"""`kernelcast serve`: predictions over HTTP or a Unix socket, for schedulers and other programs."""

import os
from pathlib import Path
from typing import Any

import click

from kernelcast.cli import option
from kernelcast.cli.fields import check_one, chosen_bundle
from kernelcast.cli.terminal import is_quiet
from kernelcast.runtime import UsageError
from kernelcast.runtime.errors import shown
from kernelcast.serve import Limits, Loaded, run, tcp_listener, unix_listener

_DEFAULTS = Limits()
_LARGEST_BODY = 1 << 30


def _mode(_context: click.Context, _parameter: click.Parameter, value: str) -> int:
    if len(value) > 4 or not value.isascii() or not value.isdigit() or set(value) & {"8", "9"}:
        raise UsageError(f"--socket-mode is {value!r:.80}, expected octal permissions such as 0660")
    mode = int(value, 8)
    if mode > 0o777:
        raise UsageError(f"--socket-mode is {value!r:.80}, expected at most 0777")
    return mode


def _body(_context: click.Context, _parameter: click.Parameter, text: str) -> int:
    # A plain number is bytes.
    size_bytes = option.parse_size(f"{text}B" if text.isdecimal() else text, name="--max-body")
    if size_bytes > _LARGEST_BODY:
        raise UsageError(f"--max-body is {shown(text)}, expected at most 1GiB")
    return size_bytes


@click.command("serve")
@option.bundle
@option.text("--socket", "socket_path", "Unix socket to listen on.", metavar="PATH")
@option.text(
    "--listen",
    "Address of this machine to listen on instead, such as 127.0.0.1:8642.",
    metavar="ADDRESS:PORT",
)
@option.flag("--allow-remote", "Allow --listen to name an address that other machines can reach.")
@option.text("--socket-mode", "Permissions of the socket.", default="0660", callback=_mode, metavar="MODE")
@option.text(
    "--workers", "Compute threads.  [default: this machine's cores, at most 2]", type=click.IntRange(1, 64)
)
@option.text(
    "--waiting",
    "Requests that may wait for a thread; further ones are answered with 503.",
    type=click.IntRange(0, 100_000),
    default=_DEFAULTS.waiting,
)
@option.text(
    "--max-body",
    "max_body_bytes",
    "Maximum size of a request body.",
    metavar="SIZE",
    callback=_body,
    default=f"{_DEFAULTS.max_body_bytes >> 20}MiB",
)
@option.text(
    "--max-search",
    "max_search_layouts",
    "Maximum number of layouts of one search.",
    type=click.IntRange(0),
    default=_DEFAULTS.max_search_layouts,
)
@option.time("--time-limit", "time_s", "Maximum time of one answer.", default_s=_DEFAULTS.time_s, most="1h")
@option.no_calibration
def serve(
    *,
    bundle: str | None,
    hardware: str | None,
    socket_path: str | None,
    listen: str | None,
    allow_remote: bool,
    socket_mode: int,
    workers: int | None,
    no_calibration: bool,
    **limits: Any,
) -> None:
    """Keep a bundle loaded and answer /predict, /walltime and /search over HTTP (docs/serve.md).

    The site file applies as in walltime. SIGHUP reloads bundle and site file, SIGTERM ends the server.

    \b
    kernelcast serve --bundle here.kcast --socket /run/kernelcast/socket
    """
    check_one("--socket", socket_path, "--listen", listen)
    path = Path(chosen_bundle(bundle, hardware))
    loaded = Loaded.load(path, os.environ, calibrated=not no_calibration)
    for problem in () if is_quiet() else loaded.problems:
        click.echo(f"kernelcast: warning: {problem}", err=True)
    if socket_path is not None:
        listener = unix_listener(Path(socket_path), mode=socket_mode)
    else:
        listener = tcp_listener(listen or "", allow_remote=allow_remote)
    if listen is not None and allow_remote and not is_quiet():
        click.echo(
            "kernelcast: warning: --allow-remote: requests to this address need no password",
            err=True,
        )
    run(
        path,
        loaded,
        listener,
        Limits(workers=workers or _DEFAULTS.workers, **limits),
        environment=os.environ,
        started=lambda: click.echo(f"{listener.name}: {loaded.name} {loaded.digest[:12]}"),
    )
