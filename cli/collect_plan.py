"""`kernelcast collect plan`: the points of a plan and their estimated time."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelcast.cli import completion
from kernelcast.cli.collect_chosen import few_points, points_option
from kernelcast.cli.measuring_options import (
    device_option,
    dtype_option,
    load_option,
    operators_option,
    plan_option,
    prior_option,
    processes_option,
    threads_option,
)
from kernelcast.cli.options import FILE, PATH, Shown, json_option, parse_size
from kernelcast.cli.progress import span
from kernelcast.cli.tables import text_table
from kernelcast.cli.terminal import say
from kernelcast.runtime.catalogue.composition import hardware_bundle
from kernelcast.runtime.errors import UsageError, needs_extra
from kernelcast.runtime.output_file import check_target, write_pieces

if TYPE_CHECKING:
    from kernelcast.sampling.preview import Preview

_NUMBERS = ("points", "fitting", "measured", "to_measure")


@click.command(short_help="Show the points of a plan and their estimated time.")
@plan_option
@click.option(
    "--for",
    "models",
    multiple=True,
    metavar="NAME|FILE",
    shell_complete=completion.model_names,
    help="Plan for this model (name or file, as for predict --model) instead of --plan; repeatable.",
)
@click.option(
    "--layouts",
    metavar="DEGREE[,DEGREE...]",
    help="Parallel degrees to plan for in addition to 1, with --for: tp2,tp4,cp2,ep8,pp4.",
)
@click.option(
    "--sequence-length",
    type=click.IntRange(min=1),
    metavar="TOKENS",
    help="Sequence length, with --for.  [default: the model's]",
)
@click.option(
    "--hardware",
    metavar="NAME",
    shell_complete=completion.hardware_names,
    help="Estimate the time on another device: h100-sxm, … (kernelcast hardware).",
)
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="FILE",
    help="Write the plan of --for to a file for --plan.",
)
@click.option(
    "--db",
    "database_path",
    type=FILE,
    help="Skip points that this database holds; it is only read.",
)
@device_option
@dtype_option
@threads_option
@processes_option
@load_option
@operators_option
@click.option(
    "--gpu-memory",
    "memory",
    metavar="SIZE",
    help="Memory of the device, such as 80GB or 40GiB.  [default: this device's]",
)
@prior_option
@points_option
@json_option
def plan(
    plan: str,
    models: tuple[str, ...],
    layouts: str | None,
    sequence_length: int | None,
    hardware: str | None,
    output: Path | None,
    database_path: Path | None,
    memory: str | None,
    prior: str | None,
    points: int | None,
    **asked: Any,
) -> Shown:
    """Show the workloads of a plan: their number, those that fit in memory, those already measured, and the estimated
    time of the rest.

    Runs only a few probe kernels, and creates no database.

    \b
    kernelcast collect plan --plan paper
    kernelcast collect plan --plan quick --db bench.db --json
    kernelcast collect plan --plan paper --dtype bfloat16 --prior a100-sxm --points 5
    kernelcast collect plan --for llama-3-8b --for mistral-7b --layouts tp2,tp4 --hardware h100-sxm -o ours.toml
    """
    if not models and (layouts or sequence_length or output):
        given = "--layouts" if layouts else "--sequence-length" if sequence_length else "--output"
        raise UsageError(f"{given} is given without --for, expected both")
    if hardware is not None and (
        prior is not None or database_path is not None or asked["processes"] != (1,)
    ):
        raise UsageError("--hardware goes with neither --db, --prior nor --procs-per-node")
    if output is not None:
        check_target(output, "--output")
    few = few_points(prior, points)
    with needs_extra("collect plan", "collector,train"):
        from kernelcast.collector.plans.plan_file import load_plan
        from kernelcast.collector.plans.plan_for import plan_for, plan_text
        from kernelcast.collector.settings import Settings
        from kernelcast.sampling.preview import preview
    chosen = plan_for(models, layouts or "", sequence_length=sequence_length) if models else load_plan(plan)
    found = preview(
        chosen,
        Settings(**asked),
        database_path=database_path,
        memory_bytes=0 if memory is None else parse_size(memory, name="memory"),
        prior=few.bundle if few else None,
        points_each=few.points if few else 0,
        hardware=None if hardware is None else hardware_bundle(hardware),
    )
    if output is not None:
        write_pieces(output, [plan_text(chosen, models)])
    return Shown(found.to_dict(), lambda: _show(found))


def _show(found: "Preview") -> None:
    rows = [
        (row.operator, row.role, *(f"{getattr(row, name):,}" for name in _NUMBERS), span(row.seconds))
        for row in found.rows
    ]
    if found.settling_s:
        rows.append(("settling", "", *("" for _ in _NUMBERS), span(found.settling_s)))
    totals = [sum(getattr(row, name) for row in found.rows) for name in _NUMBERS]
    rows.append(("total", "", *(f"{total:,}" for total in totals), span(found.seconds)))
    click.echo(text_table(["operator", "role", "points", "fit", "measured", "to measure", "time"], rows))
    say(
        f"load: {found.load.in_words}; memory: {found.memory_bytes / 2**30:.1f} GiB; time estimated from {found.source}"
    )
