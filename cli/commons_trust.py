"""`kernelcast commons report` and `distrust`: which sites agree, and taking a source back."""

from datetime import UTC, datetime
from pathlib import Path

import click

from kernelcast.cli.db import show_reverted
from kernelcast.cli.options import FILE, PATH
from kernelcast.cli.tables import print_table
from kernelcast.cli.terminal import say
from kernelcast.runtime.output_file import write_pieces
from kernelcast.store.commons.agreement import agreement
from kernelcast.store.commons.agreement import distrust as distrust_source
from kernelcast.store.commons.offers import offers
from kernelcast.store.commons.report import report_page
from kernelcast.store.commons.sources import read_sources

_SHOWN = 20


@click.command(short_help="Show whether sites agree, and who is an outlier.")
@click.argument("database_path", metavar="DATABASE", type=FILE)
@click.option("--html", "page_path", metavar="FILE", type=PATH, help="Also write an HTML page.")
def report(database_path: Path, page_path: Path | None) -> None:
    """Compare the times that sites measured at the same points on the same device with the same software.

    Sites are the sources that DATABASE was pulled from, and "own" for rows that were measured here. At each point, a
    site's time is divided by the other site's, or by the median of three or more sites; the ratio is the median over
    points. An outlier is more than 10 % off, and more than three times as far off as the median site.

    The page also lists the sources, and how long ago each source measured each operator on each device.

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
@click.argument("databases", metavar="[DATABASE]...", nargs=-1, type=FILE)
def distrust(name: str, databases: tuple[Path, ...]) -> None:
    """Pull nothing from a source any more, and remove its rows from every DATABASE (db revert).

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
