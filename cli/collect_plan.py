"""`kernelcast collect plan`, and `collect compute` with `--budget`, `--target` or `--prior`: chosen points first."""

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelcast.cli import completion, option
from kernelcast.cli.fields import read_prior
from kernelcast.cli.progress import progress, span
from kernelcast.cli.tables import text_table
from kernelcast.cli.terminal import Shown, note, say
from kernelcast.collector.compute import Collected, what_to_measure
from kernelcast.collector.plans.plan import planned_operators
from kernelcast.collector.plans.plan_ranges import Plan
from kernelcast.collector.settings import Settings
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.catalogue import hardware_bundle
from kernelcast.runtime.errors import UsageError, needs_extra
from kernelcast.runtime.output_file import check_target, write_pieces
from kernelcast.runtime.views.formatting import percent
from kernelcast.store import Database

if TYPE_CHECKING:
    from kernelcast.sampling.preview import Preview


def share(text: str) -> float:
    """A fraction of a percentage such as `5%`, or of a number such as `0.05`; UsageError unless between 0 and 1."""
    found = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,6})?|\.[0-9]{1,6})(%?)", text.strip(), re.ASCII)
    value = float(found[1]) / (100 if found[2] else 1) if found else 0.0
    if not 0 < value < 1:
        raise UsageError(f"--target is {text!r:.40}, expected an error below 100 % such as 5% or 0.05")
    return value


budget_option = option.time(
    "--budget",
    "budget_s",
    "Stop after this time (90s, 10m, 1h30m); the most informative shapes within the plan's ranges come first.",
    most="30d",
)
target_option = option.text(
    "--target",
    "Stop when the estimated error of every operator is below this, such as 5%; same order as with --budget.",
    metavar="ERROR",
    callback=lambda context, parameter, value: None if value is None else share(value),
)


def measure_within(
    database_path: Path,
    plan: Plan,
    settings: Settings,
    *,
    budget_s: float | None,
    target: float | None,
) -> Collected:
    """Measure within the budget; show progress and the errors reached. Errors as `collect_within`."""
    with needs_extra("collect compute --budget", "collector,train"):
        from kernelcast.sampling.collect import BudgetProgress, collect_within
    # Wrong use makes no database.
    settings.place()
    planned_operators(plan, settings.operators)
    given_s = math.inf if budget_s is None else budget_s
    with Database.open(database_path, create=True) as database, progress("seconds") as report:

        def show(now: BudgetProgress) -> None:
            what = f"{now.operator}: error {percent(now.error)}, mean of all {percent(now.mean_error)}"
            # Without a budget the end is not known.
            total = now.elapsed_s + 1 if budget_s is None else budget_s
            report(min(int(now.elapsed_s), int(total)), max(int(total), 1), what)

        def short(needed_s: float) -> None:
            note(
                f"note: {given_s:.0f} s is too short to measure every operator: operators are measured one after the "
                f"other; training all of them needs about {math.ceil(needed_s)} s",
                err=True,
            )

        def too_large(left_out: tuple[str, ...], memory_bytes: int) -> None:
            note(f"note: no shape of {', '.join(left_out)} fits in {memory_bytes / 2**30:.1f} GiB", err=True)

        reached = collect_within(
            database,
            plan,
            settings,
            budget_s=given_s,
            target=target or 0.0,
            on_progress=show,
            on_short=short,
            on_too_large=too_large,
        )
    rows = [(name, str(known), percent(error)) for name, error, known in reached.errors]
    click.echo(text_table(["operator", "workloads", "estimated error"], rows))
    say(f"mean estimated error {percent(reached.mean_error)} after {reached.elapsed_s:.0f} s")
    return reached.collected


MOST_POINTS = 160

points_option = option.text(
    "--points",
    "Measure only the N most informative workloads of each operator, given --prior.",
    type=click.IntRange(1, MOST_POINTS),
    metavar="N",
)


def prior_of(prior: str | None, points: int | None) -> Bundle | None:
    """The bundle of `--prior`, which `--points` correct; None without them. Errors as `read_prior`."""
    if prior is None and points is None:
        return None
    if prior is None or points is None:
        given, lacking = ("--points", "--prior") if prior is None else ("--prior", "--points")
        raise UsageError(f"{given} is given without {lacking}, expected both or neither")
    return read_prior(prior)


def measure_by_prior(
    database_path: Path, plan: Plan, prior: Bundle, points: int, settings: Settings
) -> Collected:
    """Measure the most informative points of each operator, `points` of each; errors as `collect_by_prior`."""
    with needs_extra("collect compute --prior", "collector,train"):
        from kernelcast.sampling.by_prior import collect_by_prior
    what_to_measure(plan, settings)  # wrong use makes no database
    with Database.open(database_path, create=True) as database, progress("operators") as report:
        done, chosen = collect_by_prior(database, plan, prior, points, settings, report)
    if chosen.apart:
        note(f"note: the prior lacks {', '.join(chosen.apart)}; measured as without a prior", err=True)
    return done


_NUMBERS = ("points", "fitting", "measured", "to_measure")


@click.command(short_help="Show the points of a plan and their estimated time.")
@option.plan
@option.several(
    "--for",
    "models",
    "Plan for this model (name or file, as for predict --model) instead of --plan; repeatable.",
    metavar="NAME|FILE",
    shell_complete=completion.model_names,
)
@option.text(
    "--layouts",
    "With --for: parallel degrees to plan for, such as tp2,tp4,cp2,ep8,pp4; 1 is always included.",
    metavar="DEGREE[,DEGREE...]",
)
@option.count("--sequence-length", "Sequence length, with --for.  [default: the model's]", metavar="TOKENS")
@option.text(
    "--hardware",
    "Estimate the time on another device: h100-sxm, … (kernelcast hardware).",
    metavar="NAME",
    shell_complete=completion.hardware_names,
)
@option.path("-o", "--output", "Write the plan of --for to a file for --plan.")
@option.file("--db", "database_path", "Skip points that this database holds; it is only read.")
@option.measured
@option.size(
    "--gpu-memory", "memory_bytes", "Memory of the device, such as 80GB or 40GiB.  [default: this device's]"
)
@option.prior
@points_option
@option.json
def plan(
    plan: str,
    models: tuple[str, ...],
    layouts: str | None,
    sequence_length: int | None,
    hardware: str | None,
    output: Path | None,
    database_path: Path | None,
    memory_bytes: int | None,
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
    bundle = prior_of(prior, points)
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
        memory_bytes=memory_bytes or 0,
        prior=bundle,
        points_each=points or 0,
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
