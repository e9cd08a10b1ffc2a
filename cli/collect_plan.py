"""`kernelcast collect plan`: what a plan would measure, before anything runs."""

from pathlib import Path
from typing import Any

import click

from kernelcast.cli import completion
from kernelcast.cli.collect_by_prior import few_points, points_option
from kernelcast.cli.measuring_options import (
    device_option,
    dtype_option,
    load_option,
    operators_option,
    plan_option,
    processes_option,
    threads_option,
)
from kernelcast.cli.options import FILE, PATH, RenamedOption, json_option
from kernelcast.cli.prior import prior_option
from kernelcast.cli.progress import span
from kernelcast.cli.sizes import parse_size
from kernelcast.cli.tables import text_table
from kernelcast.cli.terminal import print_json, say
from kernelcast.runtime.catalogue.composition import hardware_bundle
from kernelcast.runtime.errors import UsageError, needs_extra
from kernelcast.runtime.output_file import check_target, write_pieces

_NUMBERS = ("points", "fitting", "measured", "to_measure")


@click.command(short_help="Show what a plan would measure, and how long it takes.")
@plan_option
@click.option(
    "--for",
    "models",
    multiple=True,
    metavar="NAME|FILE",
    shell_complete=completion.model_names,
    help="Instead of --plan, a plan for this model (name or file, as predict's --model); may be given several times.",
)
@click.option(
    "--layouts",
    metavar="DEGREE[,DEGREE...]",
    help="Parallel degrees of --for's layouts beside 1: tp2,tp4,cp2,ep8,pp4.",
)
@click.option(
    "--sequence-length",
    type=click.IntRange(min=1),
    metavar="TOKENS",
    help="Tokens of a sequence that --for's models train on.  [default: the model's own]",
)
@click.option(
    "--hardware",
    metavar="NAME",
    shell_complete=completion.hardware_names,
    help="The time on a device that is not here: h100-sxm, … (kernelcast hardware).",
)
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="FILE",
    help="Write --for's plan, as --plan FILE takes it.",
)
@click.option(
    "--db",
    "database_path",
    type=FILE,
    help="A database that may hold some of it already; it is only read.",
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
    cls=RenamedOption,
    old=["--memory"],
    metavar="SIZE",
    help="Memory of the device, 80GB or 40GiB, instead of this one's.",
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
    as_json: bool,
    **asked: Any,
) -> None:
    """Show a plan's workloads: how many, which fit in memory, which are measured already, how long the rest takes.

    Measures nothing but a few probe kernels, and makes no database.

    \b
    kernelcast collect plan --plan paper
    kernelcast collect plan --plan quick --db bench.db --json
    kernelcast collect plan --plan paper --dtype bfloat16 --prior a100-sxm --points 5
    kernelcast collect plan --for llama-3-8b --for mistral-7b --layouts tp2,tp4 --hardware h100-sxm -o ours.toml
    """
    if not models and (layouts or sequence_length or output):
        given = "--layouts" if layouts else "--sequence-length" if sequence_length else "--output"
        raise UsageError(f"{given} is given without --for, expected a model that the plan is for")
    if hardware is not None and (
        prior is not None or database_path is not None or asked["processes"] != (1,)
    ):
        raise UsageError("--hardware goes with neither --db, --prior nor --procs-per-node")
    if output is not None:
        check_target(output, "--output")
    few = few_points(prior, points)
    with needs_extra("collect plan", "collector,train"):
        from kernelcast.collector.plans.plan import load_plan
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
    document = found.to_dict()
    if as_json:
        print_json(document)
        return
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
