"""`kernelcast explore`: layouts, a database or traces in the browser."""

import json
import os
import threading
import webbrowser
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click

from kernelcast.cli import option
from kernelcast.cli.fields import chosen_bundle, field_options, print_notes
from kernelcast.explore.material import Material, asset_routes, open_material
from kernelcast.runtime.request.fields import REQUEST, WISHES
from kernelcast.runtime.request.models import built_in_name, find_model
from kernelcast.serve import Limits, Loaded, run, tcp_listener

_HARDWARE = "h100-sxm"
# A page asks for one search at a time; mixtures of experts have many layouts.
_MOST_LAYOUTS, _LONGEST_S = 2_000_000, 120.0
# Options, and what the page's address calls them (explore/assets/js/state.js).
_IN_ADDRESS = {
    "gpus": "gpus",
    "global_batch": "batch",
    "sequence_length": "sequence",
    "framework": "framework",
}


@click.command("explore")
@click.argument("files", nargs=-1, metavar="[DB|TRACE...]", type=option.PATH)
@option.bundle
@option.model_or_default
@field_options(
    WISHES["gpus"],
    *(REQUEST[name] for name in _IN_ADDRESS if name in REQUEST and name != "framework"),
    replace(REQUEST["framework"], otherwise="none is assumed"),
)
@option.text("--port", "Port of 127.0.0.1; 0 for a free one.", type=click.IntRange(0, 65_535), default=0)
@option.flag("--no-browser", "Only print the address.")
def explore(
    *,
    files: tuple[Path, ...],
    bundle: str | None,
    hardware: str | None,
    model_name: str | None,
    port: int,
    no_browser: bool,
    **question: Any,
) -> None:
    """Choose hardware, model and layout in the browser, and see the predicted step at once.

    Offers all hardware, models and fabrics that ship; --bundle adds your own bundle. A database or traces get pages of
    their own. The server listens on 127.0.0.1 only; Ctrl-C ends it.

    \b
    kernelcast explore
    kernelcast explore --model llama-3-8b --gpus 64 --global-batch 512
    kernelcast explore bench.db
    kernelcast explore profiles/
    """
    path = Path(chosen_bundle(bundle, hardware if bundle or hardware else _HARDWARE))
    fragment = _fragment(model_name, question)
    with ExitStack() as stack:
        listener = tcp_listener(f"127.0.0.1:{port}")
        stack.callback(listener.close)
        material = open_material(files, stack) if files else Material()
        loaded = Loaded.load(path, os.environ)
        address = listener.name + (f"/#{fragment}" if fragment else material.first)

        def started() -> None:
            click.echo(f"{address} (Ctrl-C ends it)")
            if not no_browser:
                # Not in the loop that answers: some browsers return only when they are closed.
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

        run(
            path,
            loaded,
            listener,
            Limits(max_search_layouts=_MOST_LAYOUTS, time_s=_LONGEST_S),
            environment=os.environ,
            started=started,
            pages=[*asset_routes(material.pages), *material.routes],
        )


def _fragment(model_name: str | None, question: dict[str, Any]) -> str:
    """The question that options give, as the page's address has it; a model from a file by its fields."""
    asked = {_IN_ADDRESS[name]: value for name, value in question.items() if value is not None}
    if model_name is not None:
        length = question["sequence_length"]
        found, name = find_model(model_name, sequence_length=length), built_in_name(model_name)
        print_notes(found)
        is_shipped = name is not None and find_model(name, sequence_length=length).model == found.model
        asked |= {"model": name} if is_shipped else {"config": json.dumps(asdict(found.model))}
    return urlencode(asked)
