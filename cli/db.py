"""`kernelcast db`: info, check and merge; diff, export, query and serve are in files of their own."""

from collections.abc import Sequence
from pathlib import Path

import click

from kernelcast.cli.db_diff import diff
from kernelcast.cli.db_export import export
from kernelcast.cli.db_query import query
from kernelcast.cli.db_serve import serve
from kernelcast.cli.options import FILE, database_argument, json_option, max_size_option
from kernelcast.cli.tables import text_table
from kernelcast.cli.terminal import command_line, print_json, print_next, say
from kernelcast.store import (
    Database,
    FabricRow,
    HardwareRow,
    SoftwareRow,
    check_database,
    merge_databases,
)
from kernelcast.store.doubtful import DoubtfulSamples, doubtful_samples
from kernelcast.store.migrations import SCHEMA_VERSION

FORMAT = "kernelcast.database/1"
CHECK_FORMAT = "kernelcast.check/1"


@click.group()
def db() -> None:
    """Look into, verify, merge, compare and pass on databases.

    \b
    kernelcast db info bench.db
    kernelcast db check theirs.db
    kernelcast db merge theirs.db --into bench.db
    kernelcast db diff bench.db theirs.db
    kernelcast db export bench.db shared.db --anonymous
    kernelcast db query bench.db "SELECT * FROM coverage"
    kernelcast db serve bench.db
    """


@db.command(short_help="Show what a database holds.")
@database_argument
@json_option
@max_size_option
def info(database_path: Path, as_json: bool, max_size_bytes: int) -> None:
    """Show what a database holds: content digest, rows, hardware, fabrics and software.

    Two databases with the same content digest hold the same rows, in whatever order they were added.

    \b
    kernelcast db info bench.db
    """
    with Database.open(database_path, read_only=True, max_size_bytes=max_size_bytes) as database:
        counts = database.row_counts()
        digest = database.content_digest()
        kinds: dict[str, Sequence[HardwareRow | FabricRow | SoftwareRow]] = {
            "hardware": database.hardware_list(),
            "fabric": database.fabric_list(),
            "software": database.software_list(),
        }
        [dates] = database.query(
            "SELECT min(measured_at) AS first_measured_at, max(measured_at) AS last_measured_at FROM sample"
        )
    if as_json:
        document = {
            "format": FORMAT,
            "database": str(database_path),
            "schema_version": SCHEMA_VERSION,
            "size_bytes": database_path.stat().st_size,
            "content_digest": digest,
            "rows": counts,
            **dates,
            **{
                kind: [{"id": r.id, "description": r.description, "samples": r.sample_count} for r in rows]
                for kind, rows in kinds.items()
            },
        }
        print_json(document)
        return
    size = database_path.stat().st_size
    say(f"{database_path}: kernelcast database, schema version {SCHEMA_VERSION}, {size / 1e6:,.1f} MB")
    say(f"content digest {digest}")
    if dates["first_measured_at"]:
        say(f"measured from {dates['first_measured_at']} to {dates['last_measured_at']}")
    click.echo(text_table(("table", "rows"), [(name, f"{count:,}") for name, count in counts.items()]))
    for kind, rows in kinds.items():
        if rows:
            cells = [(row.id[:12], row.description, f"{row.sample_count:,}") for row in rows]
            click.echo("\n" + text_table((kind, "description", "samples"), cells))
    query = command_line("db", "query", database_path, "SELECT * FROM coverage")
    print_next(
        (query, "how much of each operator"),
        (command_line("train", "--db", database_path, "-o", "here.kcast"), "regressors of it"),
    )


@db.command(short_help="Verify a database, one finding a line.")
@database_argument
@json_option
@max_size_option
def check(database_path: Path, as_json: bool, max_size_bytes: int) -> int:
    """Verify a database: version, tables and views, SQLite's own check, and every row against its id.

    Prints a line per finding and ends with exit status 1 where there is one. The file is only read. Samples that
    cannot be right (faster than their hardware, or far from all others) are counted: they are no finding.

    \b
    kernelcast db check theirs.db
    """
    findings = check_database(database_path, max_size_bytes=max_size_bytes)
    doubtful: list[DoubtfulSamples] = []
    if not findings:
        with Database.open(database_path, read_only=True, max_size_bytes=max_size_bytes) as database:
            doubtful = doubtful_samples(database)
    if as_json:
        document = {
            "format": CHECK_FORMAT,
            "database": str(database_path),
            "findings": findings,
            "doubtful": [one.to_dict() for one in doubtful],
        }
        print_json(document)
        return 1 if findings else 0
    for finding in findings:
        click.echo(f"{database_path}: {finding}")
    if not findings:
        click.echo(f"{database_path}: sound")
    for one in doubtful:
        click.echo(f"{database_path}: {one}")
    return 1 if findings else 0


@db.command(short_help="Add databases to another one: a union of rows.")
@click.argument("sources", metavar="FILE...", nargs=-1, required=True, type=FILE)
@click.option("--into", required=True, type=FILE, help="The database to add to; created if missing.")
@max_size_option
def merge(sources: tuple[Path, ...], into: Path, max_size_bytes: int) -> None:
    """Add everything that some databases hold to another one: a union of rows, in any order, any number of times.

    All of it is merged or, where a row does not match its id or the merge is interrupted, nothing.

    \b
    kernelcast db merge site-a.db site-b.db --into all.db
    """
    merged = merge_databases(sources, into, max_size_bytes=max_size_bytes)
    for path, added in merged.added:
        parts = [f"{count:,} {table}" for table, count in added.items() if count]
        say(f"{path}: {', '.join(parts) + ' added' if parts else 'nothing new'}")
    say(f"{into}: content digest {merged.content_digest}")


for _command in (diff, export, query, serve):
    db.add_command(_command)
