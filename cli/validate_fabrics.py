"""`kernelcast validate fabrics`."""

from pathlib import Path

import click

from kernelcast.cli.options import json_option
from kernelcast.cli.tables import percent, signed_percent, text_table
from kernelcast.runtime.json_text import json_text
from kernelcast.runtime.views.formatting import seconds
from kernelcast.validate.fabrics import (
    MOST_ACROSS,
    MOST_DESCRIBED,
    MOST_EXTENDED,
    FabricValidation,
    validate_fabrics,
)


@click.command(short_help="Predict published collectives from descriptions of their fabrics.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@json_option
def fabrics(directory: Path, as_json: bool) -> None:
    """Predict published collectives from descriptions of their fabrics, and from rows of other layouts.

    DIR holds the published rows: vtrain/, vidur/, aiconfigurator/ and nccl-tests/. What is predicted has no part in
    its prediction. Exit code 1 where a median error is above its limit.

    \b
    kernelcast validate fabrics data
    """
    found = validate_fabrics(directory)
    if as_json:
        click.echo(json_text(found.to_dict(), indent=2))
    else:
        _show(found)
    if not found.holds:
        raise SystemExit(1)


def _show(found: FabricValidation) -> None:
    click.echo("All-reduce in A100 nodes above 32 MiB, described, efficiency from the other sources")
    devices = sorted({count for one in found.described for count in one.by_devices})
    described = [
        (
            one.source,
            f"{one.efficiency:.3f}",
            percent(one.median_error),
            signed_percent(one.median_signed_error),
            *(percent(one.by_devices[count]) if count in one.by_devices else "-" for count in devices),
            f"{one.rows:,}",
        )
        for one in found.described
    ]
    heads = ("source", "efficiency", "median", "signed", *(f"1 × {count}" for count in devices), "rows")
    click.echo(text_table(heads, described))
    click.echo(f"limit: {percent(MOST_DESCRIBED)}\n\n1 × 8 from the same source's rows of 1 × 2 and 1 × 4")
    extended = [
        (one.source, percent(one.median_error), signed_percent(one.median_signed_error), f"{one.rows:,}")
        for one in found.extended
    ]
    click.echo(text_table(("source", "median", "signed", "rows"), extended))
    click.echo(f"limit: {percent(MOST_EXTENDED)}")
    for across in found.across:
        click.echo(f"\n{across.operator} on 10 × 8 H100, from rows of 1 × 8 and 10 × 1")
        sizes = [
            (
                f"{size.message_bytes / 2**20:,.0f} MiB",
                seconds(size.measured_us / 1e6),
                seconds(size.predicted_us / 1e6),
                signed_percent(size.error),
                signed_percent(size.slower_level_us / size.measured_us - 1),
            )
            for size in across.sizes
        ]
        click.echo(text_table(("message", "measured", "predicted", "error", "slower level alone"), sizes))
        click.echo(f"median from 256 MiB: {percent(across.median_error)}, limit: {percent(MOST_ACROSS)}")
