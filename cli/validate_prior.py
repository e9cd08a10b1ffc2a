"""`kernelcast validate prior`."""

from pathlib import Path

import click

from kernelcast.cli.measuring_options import read_prior
from kernelcast.cli.options import FILE, Shown, json_option
from kernelcast.cli.progress import progress
from kernelcast.cli.tables import print_table
from kernelcast.cli.terminal import is_quiet
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.views.formatting import percent
from kernelcast.store import Database
from kernelcast.validate.prior import PriorValidation, validate_prior

_MOST_POINTS = 160


def numbers(text: str) -> tuple[int, ...]:
    """Rising numbers of points, from `5,20`.

    Raises:
        UsageError: something else.
    """
    parts = [part.strip() for part in text.split(",")]
    found = [int(part) for part in parts if part.isdecimal() and part.isascii() and len(part) < 4]
    if (
        len(found) < len(parts)
        or found != sorted(set(found))
        or not 1 <= found[0] <= found[-1] <= _MOST_POINTS
    ):
        raise UsageError(
            f"--points is {text!r:.40}, expected rising numbers up to {_MOST_POINTS}, such as 5,20"
        )
    return tuple(found)


@click.command(short_help="Predict a device's operators from a few of its points and another device.")
@click.argument("donor", metavar="NAME|FILE")
@click.argument("database_path", metavar="DB", type=FILE)
@click.option(
    "--points",
    default="5,20",
    metavar="N[,N...]",
    callback=lambda context, parameter, value: numbers(value),
    help="Points per operator that correct the prior.",
)
@click.option(
    "--without",
    multiple=True,
    metavar="OPERATOR[:ROLE]",
    help="Leave this operator out; repeatable.",
)
@click.option(
    "--draws", type=click.IntRange(1, 100), default=5, help="Number of random draws of held-out rows."
)
@json_option
def prior(
    donor: str,
    database_path: Path,
    points: tuple[int, ...],
    without: tuple[str, ...],
    draws: int,
) -> Shown:
    """Predict the operators of the device in DB from another device's bundle and a few points of DB.

    A fifth of the rows is held out. Points are chosen as by collect compute --prior, or at random; the baseline is a
    regressor of random points without a prior.

    \b
    kernelcast validate prior a100-sxm gh200.db --points 5,20
    kernelcast validate prior perlmutter.kcast vista.db --without flash_attention --without adam:first_stage
    """
    bundle = read_prior(donor)
    with Database.open(database_path, read_only=True) as database, progress("operators") as report:
        found = validate_prior(
            bundle, database, points=points, without=without, draws=draws, on_progress=report
        )
    return Shown(found.to_dict(), lambda: _show(found))


def _show(found: PriorValidation) -> None:
    print_table(
        [(one, one.to_dict()) for one in (found.uncorrected, *found.found)],
        ("points", lambda row: str(row[0].points)),
        ("way", lambda row: row[0].way if row[0].points else "prior alone"),
        ("median", lambda row: percent(row[1]["median_error"])),
        ("mean", lambda row: percent(row[1]["mean_error"])),
        ("median of roles", lambda row: percent(row[1]["median_role_error"])),
        ("mean of roles", lambda row: percent(row[1]["mean_role_error"])),
        ("in 90 %", lambda row: percent(row[1]["coverage"])),
        ("calls", lambda row: f"{row[0].minutes:.1f} min" if row[0].points else "-"),
    )
    count = len(found.uncorrected.operators)
    click.echo(
        f"{found.prior} → {found.target}, scaled by {found.scaled_by}: {count} operators and directions, "
        f"{len(found.uncorrected.of_roles)} with their roles, {found.draws} draws"
    )
    if found.left_out and not is_quiet():
        click.echo(f"left out: {', '.join(found.left_out)}")
