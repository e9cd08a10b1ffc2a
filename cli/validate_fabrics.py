"""`kernelcast validate fabrics`."""

from functools import partial
from pathlib import Path

import click

from kernelcast.cli.options import PATH, Shown, json_option
from kernelcast.cli.tables import print_table, signed_percent
from kernelcast.runtime.views.formatting import percent, seconds
from kernelcast.validate.fabrics import (
    MOST_ACROSS,
    MOST_DESCRIBED,
    MOST_EXTENDED,
    Described,
    FabricValidation,
    validate_fabrics,
)


@click.command(short_help="Predict published collectives from descriptions of their fabrics.")
@click.argument("directory", metavar="DIR", type=PATH)
@json_option
def fabrics(directory: Path) -> Shown:
    """Predict published collectives from descriptions of their fabrics, and from rows of other layouts.

    DIR holds the published rows: vtrain/, vidur/, aiconfigurator/ and nccl-tests/. The predicted rows are
    held out. Exit status 1 if a median error exceeds its limit.

    \b
    kernelcast validate fabrics data
    """
    found = validate_fabrics(directory)
    return Shown(found.to_dict(), lambda: _show(found), status=0 if found.holds else 1)


def _of_devices(count: int, one: Described) -> str:
    return percent(one.by_devices.get(count))


def _show(found: FabricValidation) -> None:
    click.echo("All-reduce in A100 nodes above 32 MiB, described, efficiency from the other sources")
    devices = sorted({count for one in found.described for count in one.by_devices})
    print_table(
        found.described,
        ("source", lambda one: one.source),
        ("efficiency", lambda one: f"{one.efficiency:.3f}"),
        ("median", lambda one: percent(one.median_error)),
        ("signed", lambda one: signed_percent(one.median_signed_error)),
        *((f"1 × {count}", partial(_of_devices, count)) for count in devices),
        ("rows", lambda one: f"{one.rows:,}"),
    )
    click.echo(f"limit: {percent(MOST_DESCRIBED)}\n\n1 × 8 from the same source's rows of 1 × 2 and 1 × 4")
    print_table(
        found.extended,
        ("source", lambda one: one.source),
        ("median", lambda one: percent(one.median_error)),
        ("signed", lambda one: signed_percent(one.median_signed_error)),
        ("rows", lambda one: f"{one.rows:,}"),
    )
    click.echo(f"limit: {percent(MOST_EXTENDED)}")
    for across in found.across:
        click.echo(f"\n{across.operator} on 10 × 8 H100, from rows of 1 × 8 and 10 × 1")
        print_table(
            across.sizes,
            ("message", lambda size: f"{size.message_bytes / 2**20:,.0f} MiB"),
            ("measured", lambda size: seconds(size.measured_us / 1e6)),
            ("predicted", lambda size: seconds(size.predicted_us / 1e6)),
            ("error", lambda size: signed_percent(size.error)),
            ("slower level alone", lambda size: signed_percent(size.slower_level_us / size.measured_us - 1)),
        )
        click.echo(f"median from 256 MiB: {percent(across.median_error)}, limit: {percent(MOST_ACROSS)}")
