"""`kernelcast collect plan`: what a plan would measure, before anything runs."""

from pathlib import Path

import click

from kernelcast.cli.collect_by_prior import few_points, points_option
from kernelcast.cli.options import (
    device_option,
    dtype_option,
    json_option,
    load_option,
    operators_option,
    plan_option,
    processes_option,
    threads_option,
)
from kernelcast.cli.prior import prior_option
from kernelcast.cli.sizes import parse_size
from kernelcast.cli.tables import text_table
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.load import Load
from kernelcast.runtime.json_text import json_text

_NUMBERS = ("points", "fitting", "measured", "to_measure")


@click.command(short_help="Show what a plan would measure, and how long it takes.")
@plan_option
@click.option(
    "--db",
    "database_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A database that may hold some of it already; it is only read.",
)
@device_option
@dtype_option
@threads_option
@processes_option
@load_option
@operators_option
@click.option(
    "--memory",
    "memory",
    metavar="SIZE",
    help="Memory of the device, 80GB or 40GiB, instead of this one's.",
)
@prior_option
@points_option
@json_option
def plan(
    plan: str,
    database_path: Path | None,
    device: str,
    dtype: str,
    threads: int,
    processes: tuple[int, ...],
    load: Load | None,
    operators: tuple[str, ...],
    memory: str | None,
    prior: str | None,
    points: int | None,
    as_json: bool,
) -> None:
    """Show a plan's workloads: how many, which fit in memory, which are measured already, how long the rest takes.

    Measures nothing but a few probe kernels, and makes no database.

    \b
    kernelcast collect plan --plan paper
    kernelcast collect plan --plan quick --db bench.db --json
    kernelcast collect plan --plan paper --dtype bfloat16 --prior a100-sxm --points 5
    """
    few = few_points(prior, points)
    try:
        from kernelcast.sampling.preview import preview
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("kernelcast"):
            raise
        raise UsageError(
            f"collect plan needs the package {error.name}, which is not installed; "
            "expected: pip install 'kernelcast[collector,train]'"
        ) from error
    found = preview(
        plan,
        database_path=database_path,
        device=device,
        dtype=dtype,
        threads=threads,
        processes=processes,
        load=load,
        operators=operators,
        memory_bytes=0 if memory is None else parse_size(memory, name="memory"),
        prior=few.bundle if few else None,
        points_each=few.points if few else 0,
    )
    document = found.to_dict()
    if as_json:
        click.echo(json_text(document, indent=2))
        return
    rows = [
        (row.operator, row.role, *(f"{getattr(row, name):,}" for name in _NUMBERS), _span(row.seconds))
        for row in found.rows
    ]
    if found.settling_s:
        rows.append(("settling", "", *("" for _ in _NUMBERS), _span(found.settling_s)))
    totals = [sum(getattr(row, name) for row in found.rows) for name in _NUMBERS]
    rows.append(("total", "", *(f"{total:,}" for total in totals), _span(found.seconds)))
    click.echo(text_table(["operator", "role", "points", "fit", "measured", "to measure", "time"], rows))
    click.echo(
        f"load: {found.load.in_words}; memory: {found.memory_bytes / 2**30:.1f} GiB; time estimated from {found.source}"
    )


def _span(value: float) -> str:
    if value < 90:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 5400 else f"{value / 3600:.1f} h"
