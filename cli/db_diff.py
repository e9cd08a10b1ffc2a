"""`kernelcast db diff`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from kernelcast.cli.options import FILE, json_option, max_size_option
from kernelcast.cli.tables import text_table
from kernelcast.cli.terminal import print_json, say
from kernelcast.store.difference import Difference, FieldDifference, NewFingerprint, Stale, diff_databases

FORMAT = "kernelcast.difference/1"


@click.command(short_help="Compare two databases: what B has, what is stale.")
@click.argument("a", type=FILE)
@click.argument("b", type=FILE)
@json_option
@max_size_option
def diff(a: Path, b: Path, as_json: bool, max_size_bytes: int) -> None:
    """Show what B has that A lacks, which fingerprints differ and in which fields, and which samples are stale.

    Stale are samples of hardware that both databases have, measured with software other than the newest.

    \b
    kernelcast db diff before-upgrade.db after-upgrade.db
    """
    difference = diff_databases(a, b, max_size_bytes=max_size_bytes)
    if as_json:
        print_json({"format": FORMAT, **asdict(difference)})
    elif difference.is_same_content:
        say("same content")
    else:
        _show(difference, a, b)


def _show(difference: Difference, a: Path, b: Path) -> None:
    rows = [
        (table, f"{difference.only_in_a[table]:,}", f"{difference.only_in_b[table]:,}")
        for table in difference.only_in_a
        if difference.only_in_a[table] or difference.only_in_b[table]
    ]
    click.echo(text_table(("rows of", f"only in A ({a})", f"only in B ({b})"), rows))
    for new in difference.new_fingerprints:
        click.echo(_new(new))
    for stale in difference.stale:
        click.echo(_stale(stale))


def _new(new: NewFingerprint) -> str:
    line = f"{new.kind} {new.id[:12]} only in B: {new.description}"
    if new.nearest_id is None:
        return f"{line}; A has no {new.kind}"
    return f"{line}; against {new.nearest_id[:12]} in A: {_fields(new.fields)}"


def _stale(stale: Stale) -> str:
    return (
        f"same {stale.hardware}, {_fields(stale.fields)}: {stale.samples:,} samples of {stale.database} stale"
    )


def _fields(fields: Sequence[FieldDifference]) -> str:
    return ", ".join(f"{field.name} {_value(field.one)} against {_value(field.other)}" for field in fields)


def _value(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value) if value not in ("", None) else "none"
