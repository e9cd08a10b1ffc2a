"""`kernelcast bundle diff`."""

from pathlib import Path

import click

from kernelcast.cli.options import FILE, json_option
from kernelcast.cli.tables import table_of, text_table
from kernelcast.cli.terminal import print_json, say
from kernelcast.runtime.bundle.difference import BundleDifference, RegressorChange, compare_bundles
from kernelcast.runtime.bundle.file import read_bundle
from kernelcast.runtime.errors import one_line

FORMAT = "kernelcast.bundle_difference/1"


@click.command(short_help="Compare two bundles: what B has that A has not.")
@click.argument("a", type=FILE)
@click.argument("b", type=FILE)
@click.option("--exit-code", is_flag=True, help="End with exit status 1 where the bundles differ.")
@json_option
def diff(a: Path, b: Path, exit_code: bool, as_json: bool) -> int:
    """Show what differs between two bundles: hardware, software, dataset, settings, and every regressor.

    Regressors of both are shown with both errors and the reason for the difference: other rows, or another recipe
    (code, libraries, settings or hardware). The exit status is 0; with --exit-code it is 1 if the bundles differ.

    \b
    kernelcast bundle diff before.kcast after.kcast
    """
    difference = compare_bundles(read_bundle(a), read_bundle(b))
    if as_json:
        document = {"format": FORMAT, "a": str(a), "b": str(b), **difference.to_dict()}
        print_json(document)
    elif difference.same_bytes:
        say("same bytes")
    else:
        _show(difference, one_line(str(a)), one_line(str(b)))
    return 1 if exit_code and not difference.same_bytes else 0


def _show(difference: BundleDifference, a: str, b: str) -> None:
    if difference.settings:
        settings = [(s.name, one_line(s.a), one_line(s.b)) for s in difference.settings]
        click.echo(text_table(("differs", f"A ({a})", f"B ({b})"), settings) + "\n")
    if difference.changed:
        table = table_of(
            difference.changed,
            ("operator", lambda change: change.a.operator),
            ("direction", lambda change: change.a.direction_text),
            ("why", _why),
            ("rows A", lambda change: str(change.a.rows)),
            ("rows B", lambda change: str(change.b.rows)),
            ("error A", lambda change: f"{change.a.validation_error:.1%}"),
            ("error B", lambda change: f"{change.b.validation_error:.1%}"),
            ("size A", lambda change: f"{change.a.size_bytes / 1000:.0f} kB"),
            ("size B", lambda change: f"{change.b.size_bytes / 1000:.0f} kB"),
        )
        click.echo(table + "\n")
    for where, entries in (("A", difference.removed), ("B", difference.added)):
        for entry in entries:
            say(
                f"only in {where}: {entry.operator} ({entry.direction_text}), {entry.rows} rows, "
                f"error {entry.validation_error:.1%}"
            )
    say(
        f"regressors: {len(difference.changed)} changed, {len(difference.removed)} only in A, "
        f"{len(difference.added)} only in B, {difference.unchanged} the same"
    )


def _why(change: RegressorChange) -> str:
    reasons = (("rows", change.rows_differ), ("recipe", change.recipe_differs))
    return " and ".join(word for word, holds in reasons if holds) or "model"
