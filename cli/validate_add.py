"""`kernelcast validate add`."""

from pathlib import Path

import click

from kernelcast.cli.options import FILE
from kernelcast.cli.validate_steps import shown_file
from kernelcast.runtime.errors import one_line
from kernelcast.validate.own_runs import add_runs


@click.command(short_help="Add your own measured steps to those that are scored.")
@click.argument("path", metavar="RUNS", type=FILE)
@click.option("--replace", is_flag=True, help="Take the place of an added file of the same name.")
def add(path: Path, replace: bool) -> None:
    """Check a file of measured steps (TOML, docs/validation.md), predict them, and keep a copy.

    From then on `validate steps` without files, its --picture, and `make scoreboard` show them beside those that ship.
    The copy lies in the folder that $KERNELCAST_RUNS names, else in ~/.local/share/kernelcast/runs; deleting it there
    takes it away again. Nothing leaves this machine, and nothing is fitted to the steps.

    \b
    kernelcast validate add ours.toml
    """
    found = add_runs(path, replace=replace)
    click.echo(shown_file(found.scored))
    click.echo(f"\n{one_line(str(found.path))}: {'added' if found.is_new else 'already there'}")
