"""`kernelcast explore`: layouts, a database or traces in the browser."""

import os
import threading
import webbrowser
from contextlib import ExitStack
from pathlib import Path

import click

from kernelcast.cli import option
from kernelcast.cli.fields import chosen_bundle
from kernelcast.explore.material import Material, asset_routes, open_material
from kernelcast.serve import Limits, Warm, run, tcp_listener

_HARDWARE = "h100-sxm"
# A page asks for one search at a time; mixtures of experts have many layouts.
_MOST_LAYOUTS, _LONGEST_S = 2_000_000, 120.0


@click.command("explore")
@click.argument("files", nargs=-1, metavar="[DB|TRACE...]", type=option.PATH)
@option.bundle
@option.text("--port", "Port of 127.0.0.1; 0 for a free one.", type=click.IntRange(0, 65_535), default=0)
@option.flag("--no-browser", "Only print the address.")
def explore(
    *, files: tuple[Path, ...], bundle: str | None, hardware: str | None, port: int, no_browser: bool
) -> None:
    """Choose hardware, model and layout in the browser, and see the predicted step at once.

    Offers all hardware, models and fabrics that ship; --bundle adds your own bundle. A database or traces get pages of
    their own. The server listens on 127.0.0.1 only; Ctrl-C ends it.

    \b
    kernelcast explore
    kernelcast explore bench.db
    kernelcast explore profiles/
    """
    path = Path(chosen_bundle(bundle, hardware if bundle or hardware else _HARDWARE))
    with ExitStack() as stack:
        listener = tcp_listener(f"127.0.0.1:{port}")
        stack.callback(listener.close)
        material = open_material(files, stack) if files else Material()
        warm = Warm.load(path, os.environ)
        address = listener.name + material.first

        def started() -> None:
            click.echo(f"{address} (Ctrl-C ends it)")
            if not no_browser:
                # Not in the loop that answers: some browsers return only when they are closed.
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

        run(
            path,
            warm,
            listener,
            Limits(max_search_layouts=_MOST_LAYOUTS, time_s=_LONGEST_S),
            environment=os.environ,
            started=started,
            pages=[*asset_routes(material.pages), *material.routes],
        )
