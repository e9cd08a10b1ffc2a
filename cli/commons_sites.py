"""`kernelcast commons report`, `distrust` and `routine`: which sites agree, and a batch script that takes part."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from kernelcast.cli import option
from kernelcast.cli.db import show_reverted
from kernelcast.cli.tables import print_table
from kernelcast.cli.terminal import command_line, print_next, say
from kernelcast.runtime.errors import UsageError, either
from kernelcast.runtime.output_file import write_pieces
from kernelcast.store.commons.agreement import agreement
from kernelcast.store.commons.agreement import distrust as distrust_source
from kernelcast.store.commons.offers import offers
from kernelcast.store.commons.report import report_page
from kernelcast.store.commons.routine import Routine
from kernelcast.store.commons.sources import read_sources

_SHOWN = 20


@click.command(short_help="Show whether sites agree, and who is an outlier.")
@click.argument("database_path", metavar="DATABASE", type=option.FILE)
@option.path("--html", "page_path", "Also write an HTML page.")
def report(database_path: Path, page_path: Path | None) -> None:
    """Show whether sites measured equal times for equal points, devices and software.

    Sites are the sources that were pulled into DATABASE, and "own": rows measured here. ratio is a site's time divided
    by the median of all sites (of two: by the other's), as the median over points. An outlier deviates by more than
    10 %, and more than three times as much as the median site.

    The page of --html also lists the sources, and the age of their measurements per operator and device.

    \b
    kernelcast commons report bench.db
    kernelcast commons report bench.db --html commons.html
    """
    agreements = agreement(database_path)
    if page_path is not None:
        sources = [(source, source.index()) for source in read_sources()]
        found = offers() if sources else []
        page = report_page(sources, found, agreements, database_path.name, datetime.now(UTC))
        write_pieces(page_path, [page])
    if not agreements:
        say(f"{database_path}: no point was measured by two sites with the same device and software")
        return
    print_table(
        agreements[:_SHOWN],
        ("site", lambda one: one.site),
        ("operator", lambda one: one.operator),
        ("direction", lambda one: one.direction),
        ("type", lambda one: one.dtype),
        ("sites", lambda one: f"{one.sites:,}"),
        ("points", lambda one: f"{one.points:,}"),
        ("ratio", lambda one: f"{one.ratio:.2f}"),
        ("spread", lambda one: f"{one.spread:.2f}"),
        ("hardware", lambda one: one.hardware),
        ("software", lambda one: one.software),
        optional=("software", "hardware"),
    )
    if len(agreements) > _SHOWN:
        say(f"and {len(agreements) - _SHOWN:,} more that agree better")
    for one in agreements:
        if one.is_outlier:
            click.echo(f"outlier: {one}")


@click.command(short_help="Distrust a source, and take its rows out of databases.")
@click.argument("name")
@click.argument("databases", metavar="[DATABASE]...", nargs=-1, type=option.FILE)
def distrust(name: str, databases: tuple[Path, ...]) -> None:
    """Stop pulling from a source, and remove its rows from every DATABASE (db revert).

    Rows that also came from another source or file stay. Bundles that were trained on removed rows are listed: train
    them again.

    \b
    kernelcast commons distrust site-a bench.db
    """
    reverted = distrust_source(name, databases)
    say(f"{name}: distrusted")
    for path, one in reverted:
        if one.merges:
            show_reverted(path, one)
        else:
            say(f"{path}: nothing was pulled from {name}")


_DTYPES = ("float32", "bfloat16", "float16")


@click.command(short_help="Print a Slurm array and a cron line that measure and publish.")
@option.database_argument
@click.argument("folder", metavar="FOLDER", type=option.PATH)
@option.plan
@option.several(
    "--dtype",
    "dtypes",
    "float32, bfloat16 or float16; repeatable.  [default: float32]",
    default=("float32",),
    metavar="NAME",
)
@option.text(
    "--gpus-per-node",
    "GPUs per node; with 2 or more, collectives are measured too; 0 measures the CPU.",
    type=click.IntRange(min=0),
    default=0,
)
@option.file("--key", "Sign the index with this SSH key.")
@option.text("--site", "Public name of the site.  [default: as last published, or none]", default="")
@option.path("-o", "--output", "File to write.  [default: print it]")
def routine(
    database_path: Path, folder: Path, dtypes: tuple[str, ...], output: Path | None, **asked: Any
) -> None:
    """Print a Slurm array that measures what FILE lacks, publishes it in FOLDER and compares it with other sites. A
    cron line submits the array every week.

    Points that the database already holds for this hardware and software are skipped, so all are measured again after
    an upgrade of the driver. This command only prints: it submits and publishes nothing.

    \b
    kernelcast commons routine bench.db public/commons --gpus-per-node 8 --dtype bfloat16 -o routine.sbatch
    """
    for dtype in dtypes:
        if dtype not in _DTYPES:
            raise UsageError(f"--dtype is {dtype!r:.40}, expected {either(_DTYPES)}")
    if output is not None:
        asked["name"] = str(output)
    found = Routine(database=database_path, folder=folder, dtypes=dtypes, **asked)
    if output is None:
        click.echo(found.script, nl=False)
        return
    write_pieces(output, [found.script])
    say(f"{output}: {len(found.tasks):,} tasks; for crontab -e:")
    click.echo(found.cron)
    dry_run = command_line("commons", "publish", database_path, folder, "--dry-run")
    print_next((dry_run, "what would be published"))
