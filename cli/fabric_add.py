"""`kernelcast fabric add`: a description into a database."""

from pathlib import Path

import click

from kernelcast.cli.options import database_option
from kernelcast.runtime.bundle.described_fabric import fingerprint_of
from kernelcast.runtime.hardware.fabric_file import fabric_named, read_fabric
from kernelcast.store import Database


@click.command(short_help="Store a description in a database.")
@click.argument("name", metavar="NAME|FILE")
@database_option("The database; created if missing.")
def add(name: str, database_path: Path) -> None:
    """Store a description in a database. Adding it again changes nothing.

    It is merged and exported with the database. Bundles trained on it hold the description, where it is the only one
    of nodes like the measured ones: layouts that were never measured are then extended by it.

    \b
    kernelcast fabric add ours.toml --db bench.db
    """
    found = read_fabric(name) if "/" in name or name.endswith(".toml") else fabric_named(name)
    fingerprint = fingerprint_of(found)
    with Database.open(database_path, create=True) as database:
        is_new = database.add_fabric(fingerprint)
    there = "added" if is_new else "already there"
    click.echo(f"{database_path}: {found.description}: {there} as {fingerprint.digest[:12]}")
