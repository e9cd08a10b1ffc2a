"""`kernelcast db`: info, check, merge, revert, diff, export, query and serve."""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kernelcast.cli import option
from kernelcast.cli.tables import table_lines, text_table
from kernelcast.cli.terminal import Shown, command_line, data_width, print_next, say
from kernelcast.runtime.dataclass import asdict
from kernelcast.runtime.errors import UsageError, needs_extra, one_line
from kernelcast.runtime.json_text import json_text
from kernelcast.store import Database, FabricRow, HardwareRow, SoftwareRow, check_database, merge_databases
from kernelcast.store.difference import Difference, FieldDifference, NewFingerprint, diff_databases
from kernelcast.store.doubts import DoubtfulSamples, doubtful_samples
from kernelcast.store.export import Subset, export_database
from kernelcast.store.merges import Reverted, revert_merge, stored_merges
from kernelcast.store.querying import DEFAULT_TIME_LIMIT_S, Answer, answer
from kernelcast.store.schema import SCHEMA_VERSION

FORMAT = "kernelcast.database/1"
CHECK_FORMAT = "kernelcast.check/1"
DIFFERENCE_FORMAT = "kernelcast.difference/1"


@click.group()
def db() -> None:
    """Inspect, verify, merge, compare, export and query databases.

    \b
    kernelcast db info bench.db
    kernelcast db check theirs.db
    kernelcast db merge theirs.db --into bench.db
    kernelcast db revert bench.db MERGE
    kernelcast db diff bench.db theirs.db
    kernelcast db export bench.db shared.db --anonymous
    kernelcast db query bench.db "SELECT * FROM coverage"
    kernelcast db serve bench.db
    """


@db.command(short_help="Show the contents of a database.")
@option.database_argument
@option.json
@option.max_size
def info(database_path: Path, max_size_bytes: int) -> Shown:
    """Show the contents of a database: content digest, row counts, hardware, fabrics and software.

    Databases with equal content digests hold the same rows, in whatever order they were added.

    \b
    kernelcast db info bench.db
    """
    with Database.open(database_path, read_only=True, max_size_bytes=max_size_bytes) as database:
        counts = database.row_counts()
        digest = database.content_digest()
        fingerprints: dict[str, Sequence[HardwareRow | FabricRow | SoftwareRow]] = {
            "hardware": database.hardware_list(),
            "fabric": database.fabric_list(),
            "software": database.software_list(),
        }
        merges = stored_merges(database.connection)
        [dates] = database.query(
            "SELECT min(measured_at) AS first_measured_at, max(measured_at) AS last_measured_at FROM sample"
        )
    size_bytes = database_path.stat().st_size
    document = {
        "format": FORMAT,
        "database": str(database_path),
        "schema_version": SCHEMA_VERSION,
        "size_bytes": size_bytes,
        "content_digest": digest,
        "rows": counts,
        **dates,
        "merges": [asdict(one) for one in merges],
        **{
            name: [{"id": r.id, "description": r.description, "samples": r.sample_count} for r in rows]
            for name, rows in fingerprints.items()
        },
    }

    def show() -> None:
        say(
            f"{database_path}: kernelcast database, schema version {SCHEMA_VERSION}, {size_bytes / 1e6:,.1f} MB"
        )
        say(f"content digest {digest}")
        if dates["first_measured_at"]:
            say(f"measured from {dates['first_measured_at']} to {dates['last_measured_at']}")
        click.echo(text_table(("table", "rows"), [(name, f"{count:,}") for name, count in counts.items()]))
        for name, rows in fingerprints.items():
            if rows:
                cells = [(row.id[:12], row.description, f"{row.sample_count:,}") for row in rows]
                click.echo("\n" + text_table((name, "description", "samples"), cells))
        if merges:
            of_merges = [(m.id[:12], m.signer or "not signed", m.merged_at, f"{m.rows:,}") for m in merges]
            click.echo("\n" + text_table(("merge", "signer", "merged at", "rows"), of_merges))
        query = command_line("db", "query", database_path, "SELECT * FROM coverage")
        print_next(
            (query, "samples of each operator"),
            (command_line("train", "--db", database_path, "-o", "here.kcast"), "fit regressors to them"),
        )

    return Shown(document, show)


@db.command(short_help="Verify a database.")
@option.database_argument
@option.json
@option.max_size
def check(database_path: Path, max_size_bytes: int) -> Shown:
    """Verify a database: version, tables and views, SQLite's integrity check, and every row against its id.

    Prints one line per finding; exit status 1 if there is any. The file is only read. Doubtful samples (faster than the
    hardware allows, or outliers) are counted, but are not findings.

    \b
    kernelcast db check theirs.db
    """
    findings = check_database(database_path, max_size_bytes=max_size_bytes)
    doubtful: list[DoubtfulSamples] = []
    if not findings:
        with Database.open(database_path, read_only=True, max_size_bytes=max_size_bytes) as database:
            doubtful = doubtful_samples(database)
    document = {
        "format": CHECK_FORMAT,
        "database": str(database_path),
        "findings": findings,
        "doubtful": [one.to_dict() for one in doubtful],
    }

    def show() -> None:
        for line in (*(findings or ["sound"]), *doubtful):
            click.echo(one_line(f"{database_path}: {line}"))

    return Shown(document, show, status=1 if findings else 0)


@db.command(short_help="Merge databases into one: the union of their rows.")
@click.argument("sources", metavar="FILE...", nargs=-1, required=True, type=option.FILE)
@option.file("--into", "Database to merge into; created if missing.", required=True)
@option.file(
    "--allowed-signers", "Verify each FILE.sig against this list of signers, in the format of ssh-keygen(1)."
)
@option.text("--signed-by", "signer", "Accept only this signer.", default="")
@option.max_size
def merge(
    sources: tuple[Path, ...], into: Path, allowed_signers: Path | None, signer: str, max_size_bytes: int
) -> None:
    """Merge databases into one: the union of their rows. Order does not matter, and repeating a merge changes nothing.

    Everything is merged, or nothing if a row does not match its id or the merge is interrupted. Every added row records
    its merge, and db revert can undo it.

    \b
    kernelcast db merge site-a.db site-b.db --into all.db
    kernelcast db merge theirs.db --into all.db --allowed-signers signers --signed-by site-b
    """
    if signer and allowed_signers is None:
        raise UsageError("--signed-by is given without --allowed-signers, expected both")
    merged = merge_databases(
        sources, into, max_size_bytes=max_size_bytes, allowed_signers=allowed_signers, signer=signer
    )
    for path, added in merged.added:
        parts = [f"{count:,} {table}" for table, count in added.items() if count]
        say(f"{path}: {', '.join(parts) + ' added' if parts else 'nothing new'}")
    if into_own_runs := sum(one.into_own_runs for one in merged.merges):
        say(
            f"{into}: doubtful: {into_own_runs:,} merged samples belong to runs that it already held (db info)"
        )
    say(f"{into}: content digest {merged.content_digest}")


@db.command(short_help="Undo a merge.")
@option.database_argument
@click.argument("merge_id", metavar="MERGE")
def revert(database_path: Path, merge_id: str) -> None:
    """Undo a merge: remove the rows that only this merge added. MERGE is the start of its id (see db info).

    Rows measured, predicted or merged later stay, with all rows that they refer to. Bundles that were trained on
    removed rows are listed.

    \b
    kernelcast db revert all.db 5c2a0197
    """
    show_reverted(database_path, revert_merge(database_path, merge_id))


def show_reverted(database_path: Path, reverted: Reverted) -> None:
    """What was removed, and bundles that were trained on it."""
    parts = [f"{count:,} {table}" for table, count in reverted.removed.items()]
    kept = f"; {reverted.kept:,} rows stay that others refer to" if reverted.kept else ""
    merges = ", ".join(one.id[:12] for one in reverted.merges[:3])
    more = f" and {len(reverted.merges) - 3:,} more" if len(reverted.merges) > 3 else ""
    say(f"{database_path}: merge {merges}{more}: {', '.join(parts) or 'nothing'} removed{kept}")
    for bundle in reverted.bundles:
        click.echo(f"{database_path}: {bundle}")
    say(f"{database_path}: content digest {reverted.content_digest}")


@db.command(short_help="Compare two databases, and list stale samples.")
@click.argument("a", type=option.FILE)
@click.argument("b", type=option.FILE)
@option.json
@option.max_size
def diff(a: Path, b: Path, max_size_bytes: int) -> Shown:
    """Show rows that only one database holds, new fingerprints with the fields that differ, and stale samples.

    A sample is stale if its hardware is in both databases and newer software was measured on it.

    \b
    kernelcast db diff before-upgrade.db after-upgrade.db
    """
    difference = diff_databases(a, b, max_size_bytes=max_size_bytes)
    document = {"format": DIFFERENCE_FORMAT, **asdict(difference)}
    return Shown(document, lambda: _show_difference(difference, a, b))


def _show_difference(difference: Difference, a: Path, b: Path) -> None:
    if difference.is_same_content:
        say("same content")
        return
    rows = [
        (table, f"{difference.only_in_a[table]:,}", f"{difference.only_in_b[table]:,}")
        for table in difference.only_in_a
        if difference.only_in_a[table] or difference.only_in_b[table]
    ]
    click.echo(text_table(("rows of", f"only in A ({a})", f"only in B ({b})"), rows))
    for new in difference.new_fingerprints:
        click.echo(_new(new))
    for stale in difference.stale:
        click.echo(
            f"{stale.samples:,} samples of {stale.database} are stale: {stale.hardware}, {_fields(stale.fields)}"
        )


def _new(new: NewFingerprint) -> str:
    line = f"{new.kind} {new.id[:12]} only in B: {new.description}"
    if new.nearest_id is None:
        return f"{line}; A has no {new.kind}"
    return f"{line}; most similar in A: {new.nearest_id[:12]}, {_fields(new.fields)}"


def _fields(fields: Sequence[FieldDifference]) -> str:
    return ", ".join(f"{field.name} {_value(field.one)} → {_value(field.other)}" for field in fields)


def _value(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value) if value not in ("", None) else "none"


@db.command(short_help="Export a part of a database.")
@option.database_argument
@click.argument("target", metavar="OUT", type=option.PATH)
@option.operators
@option.fingerprint("hardware", "Only this hardware, by the start of its id (see db info).")
@option.text("--since", "Only samples measured on or after this UTC date, such as 2026-01-31.", default="")
@option.text("--until", "Only samples measured before this UTC date.", default="")
@option.flag("--anonymous", "Leave out site names and notes.")
@option.choice(
    ("sqlite", "parquet"),
    "--format",
    "form",
    "SQLite database, or folder of Parquet files for DuckDB, Spark or Dask.",
    default="sqlite",
)
@option.max_size
def export(
    database_path: Path, target: Path, anonymous: bool, form: str, max_size_bytes: int, **limits: Any
) -> None:
    """Export a part of a database as a new database, or as Parquet files.

    Rows keep their ids, so an export merges with any other database. --anonymous leaves out site names and notes;
    texts that are part of ids (names of imported files and of models, reasons of failures) are kept, and listed.

    \b
    kernelcast db export bench.db linear.db --operator gemm --since 2026-01-01
    kernelcast db export bench.db shared.db --anonymous
    kernelcast db export bench.db bench-parquet --format parquet
    """
    subset = Subset(anonymous=anonymous, **limits)
    if form == "parquet":
        with needs_extra("db export --format parquet", "parquet"):
            from kernelcast.store.parquet import export_parquet
        rows = export_parquet(database_path, target, subset, max_size_bytes=max_size_bytes)
        events = f", {rows['trace_event']:,} events of traces" if rows["trace_event"] else ""
        click.echo(f"{target}: {rows['sample']:,} samples, {rows['kernel']:,} kernels{events}")
        return
    exported = export_database(database_path, target, subset, max_size_bytes=max_size_bytes)
    parts = [f"{count:,} {table}" for table, count in exported.rows.items() if count]
    click.echo(f"{target}: {', '.join(parts) or 'no rows'}")
    click.echo(f"content digest {exported.content_digest}")
    if anonymous:
        for name, texts in exported.texts.items():
            click.echo(f"kept {name}: {'; '.join(texts)}")


@db.command(short_help="Query a database in SQL.")
@option.database_argument
@click.argument("sql")
@option.choice(("table", "csv", "json"), "--format", "form", "Output format.", default="table")
@option.time(
    "--time-limit", "time_limit_s", "Stop a query that takes longer.", default_s=DEFAULT_TIME_LIMIT_S
)
@option.max_size
def query(database_path: Path, sql: str, form: str, time_limit_s: float, max_size_bytes: int) -> None:
    """Query a database in SQL. Statements that write are refused.

    schema.sql documents tables and views, docs/sql.md has frequent queries.

    \b
    kernelcast db query bench.db "SELECT operator, roles, direction, samples FROM coverage"
    kernelcast db query bench.db "SELECT * FROM operator_time" --format csv > times.csv
    """
    with answer(database_path, sql, max_size_bytes=max_size_bytes, time_limit_s=time_limit_s) as found:
        {"table": _table, "csv": _csv, "json": _json}[form](found)


def _table(found: Answer) -> None:
    rows = (["" if value is None else _cell(value) for value in row] for row in found.rows)
    for line in table_lines(found.columns, rows, width=data_width()):
        click.echo(line)


def _cell(value: object) -> str:
    return " ".join(str(value).split()) if isinstance(value, str) else str(value)


def _csv(found: Answer) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(found.columns)
    writer.writerows(found.rows)


def _json(found: Answer) -> None:
    """One object per row, in a list, written as it is read; JSON has no infinity, which SQL computes as 9e999."""
    click.echo("[", nl=False)
    for index, row in enumerate(found.rows):
        plain = (value.hex() if isinstance(value, bytes) else value for value in row)
        values = dict(zip(found.columns, plain, strict=True))
        click.echo((",\n " if index else "\n ") + json_text(values, is_ascii=False), nl=False)
    click.echo("\n]")


@db.command(short_help="Browse a database on this machine.")
@option.database_argument
@option.text("--port", "Port of 127.0.0.1; 0 for a free one.", type=click.IntRange(0, 65535), default=8001)
@option.max_size
def serve(database_path: Path, port: int, max_size_bytes: int) -> None:
    """Browse a database with Datasette and the queries of docs/sql.md; only this machine can connect. Ctrl-C ends it.

    \b
    kernelcast db serve bench.db
    """
    with needs_extra("db serve", "datasette"):
        from kernelcast.explore.database_server import prepare, run
        from kernelcast.serve import tcp_listener
    application = prepare(database_path, max_size_bytes=max_size_bytes)
    listener = tcp_listener(f"127.0.0.1:{port}")  # this machine only: there are no passwords
    run(application, listener, lambda: click.echo(f"{database_path}: {listener.name}/ (Ctrl-C ends it)"))
