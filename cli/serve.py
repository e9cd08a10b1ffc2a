"""`kernelcast serve`: a warm predictor behind a socket, for schedulers and other programs."""

import os
from pathlib import Path

import click

from kernelcast.cli.options import (
    bundle_option,
    check_one,
    chosen_bundle,
    no_calibration_option,
    parse_size,
    time_option,
)
from kernelcast.cli.terminal import is_quiet
from kernelcast.runtime import UsageError
from kernelcast.runtime.errors import shown
from kernelcast.serve import Limits, Listener, Warm, run, tcp_listener, unix_listener
from kernelcast.serve.limits import usual_workers

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
    size_bytes = parse_size(f"{text}B" if text.isdecimal() else text, name="--max-body")
    if size_bytes > _LARGEST_BODY:
        raise UsageError(f"--max-body is {shown(text)}, expected at most 1GiB")
    return size_bytes


@click.command("serve")
@bundle_option
@click.option("--socket", "socket_path", metavar="PATH", help="Unix socket to listen on.")
@click.option(
    "--listen",
    metavar="ADDRESS:PORT",
    help="Address of this machine to listen on instead, such as 127.0.0.1:8642.",
)
@click.option(
    "--allow-remote", is_flag=True, help="Allow --listen to name an address that other machines can reach."
)
@click.option(
    "--socket-mode",
    default="0660",
    callback=_mode,
    metavar="MODE",
    help="Permissions of the socket.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    help="Compute threads.  [default: this machine's cores, at most 4]",
)
@click.option(
    "--waiting",
    type=click.IntRange(0, 100_000),
    default=_DEFAULTS.waiting,
    help="Requests that may wait for a thread; further ones are answered with 503.",
)
@click.option(
    "--max-body",
    metavar="SIZE",
    callback=_body,
    default=f"{_DEFAULTS.max_body_bytes >> 20}MiB",
    help="Maximum size of a request body.",
)
@click.option(
    "--max-search",
    type=click.IntRange(0),
    default=_DEFAULTS.max_search_layouts,
    help="Maximum number of layouts of one search.",
)
@time_option("--time-limit", "time_limit", _DEFAULTS.time_s, "Maximum time of one answer.", most="1h")
@no_calibration_option
def serve(
    *,
    bundle: str | None,
    hardware: str | None,
    socket_path: str | None,
    listen: str | None,
    allow_remote: bool,
    socket_mode: int,
    workers: int | None,
    waiting: int,
    max_body: int,
    max_search: int,
    time_limit: float,
    no_calibration: bool,
) -> None:
    """Keep a bundle loaded and answer /predict, /walltime and /search over HTTP (docs/serve.md).

    The site file applies as in walltime. SIGHUP reloads bundle and site file, SIGTERM ends the server.

    \b
    kernelcast serve --bundle here.kcast --socket /run/kernelcast/socket
    """
    check_one("--socket", socket_path, "--listen", listen)
    limits = Limits(
        workers=workers or usual_workers(),
        waiting=waiting,
        max_body_bytes=max_body,
        max_search_layouts=max_search,
        time_s=time_limit,
    )
    path = Path(chosen_bundle(bundle, hardware))
    warm = Warm.load(path, os.environ, calibrated=not no_calibration)
    for problem in () if is_quiet() else warm.problems:
        click.echo(f"kernelcast: warning: {problem}", err=True)
    listener = _listener(socket_path, listen, socket_mode, allow_remote)
    if listen is not None and allow_remote and not is_quiet():
        click.echo(
            "kernelcast: warning: --allow-remote: requests to this address need no password",
            err=True,
        )
    run(
        path,
        warm,
        listener,
        limits,
        environment=os.environ,
        started=lambda: click.echo(f"{listener.name}: {warm.name} {warm.digest[:12]}"),
    )


def _listener(socket_path: str | None, listen: str | None, socket_mode: int, allow_remote: bool) -> Listener:
    if socket_path is not None:
        return unix_listener(Path(socket_path), mode=socket_mode)
    return tcp_listener(listen or "", allow_remote=allow_remote)
