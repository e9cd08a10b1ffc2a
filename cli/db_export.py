"""`kernelcast db export`."""

from pathlib import Path
from typing import Any

import click

from kernelcast.cli.measuring_options import operators_option
from kernelcast.cli.options import PATH, database_argument, id_option, max_size_option
from kernelcast.runtime.errors import needs_extra
from kernelcast.store.export import Subset, export_database


@click.command()
@database_argument
@click.argument("target", metavar="OUT", type=PATH)
@operators_option
@id_option("hardware", "Only this hardware: the start of its id (see db info).")
@click.option("--since", default="", help="Only what was measured from this UTC date on, such as 2026-01-31.")
@click.option("--until", default="", help="Only what was measured before this UTC date.")
@click.option("--anonymous", is_flag=True, help="Leave out site names and notes.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("sqlite", "parquet")),
    default="sqlite",
    show_default=True,
    help="A database, or a folder of Parquet files for DuckDB, Spark or Dask.",
)
@max_size_option
def export(
    database_path: Path, target: Path, anonymous: bool, form: str, max_size_bytes: int, **limits: Any
) -> None:
    """Write a part of a database as a new one, or as Parquet files.

    Rows keep their ids, so the export merges with any other database. --anonymous leaves out site names and notes;
    texts that are part of ids (names of imported files, of models, reasons of failures) stay, and are listed.

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
