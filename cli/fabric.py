"""`kernelcast fabric`: each of its verbs is in a file of its own, imported when it is used."""

from collections.abc import Mapping

import click

from kernelcast.cli.lazy import LazyGroup, Verb

VERBS: Mapping[str, Verb] = {
    "list": Verb("fabric_show", "list_", "", "List the descriptions that ship."),
    "show": Verb("fabric_show", "show", "", "Show a fabric, and times of collectives on it."),
    "new": Verb("fabric_new", "new", "", "Describe a fabric in a small TOML file."),
    "add": Verb("fabric_add", "add", "store", "Store a description in a database."),
    "attach": Verb("fabric_attach", "attach", "", "Put a description into a bundle, without training again."),
}


@click.group(cls=LazyGroup, verbs=VERBS)
def fabric() -> None:
    """Describe what connects devices: links inside a node, network cards between nodes.

    A description answers collectives that were never measured: predict, search, walltime and serve take it as
    --fabric.

    \b
    kernelcast fabric list
    kernelcast fabric show h100-3200g
    kernelcast fabric new ours --gpus-per-node 8 --inside NVSwitch --inside-gb-per-s 450 --cards 8 \\
      --gbit-per-s 400 -o ours.toml
    kernelcast fabric add ours.toml --db bench.db
    kernelcast fabric attach ours.toml --bundle h100.kcast -o h100-described.kcast
    """
