"""`collect compute` with `--budget`, `--target` or `--prior`: the most informative points first."""

import math
import re
from pathlib import Path

import click

from kernelcast.cli.measuring_options import read_prior
from kernelcast.cli.options import time_option
from kernelcast.cli.progress import progress
from kernelcast.cli.tables import text_table
from kernelcast.cli.terminal import note, say
from kernelcast.collector.compute import Collected, what_to_measure
from kernelcast.collector.plans.plan import planned_operators
from kernelcast.collector.plans.plan_ranges import Plan
from kernelcast.collector.settings import Settings
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError, needs_extra
from kernelcast.runtime.views.formatting import percent
from kernelcast.store import Database


def share(text: str) -> float:
    """A fraction of a percentage such as `5%`, or of a number such as `0.05`.

    Raises:
        UsageError: something else, or not between 0 and 1.
    """
    found = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,6})?|\.[0-9]{1,6})(%?)", text.strip(), re.ASCII)
    value = float(found[1]) / (100 if found[2] else 1) if found else 0.0
    if not 0 < value < 1:
        raise UsageError(f"--target is {text!r:.40}, expected an error below 100 % such as 5% or 0.05")
    return value


budget_option = time_option(
    "--budget",
    "budget_s",
    None,
    "Measure the most informative shapes of the plan's ranges first, for this time: 90s, 10m, 1h30m.",
    most="30d",
)
target_option = click.option(
    "--target",
    metavar="ERROR",
    callback=lambda context, parameter, value: None if value is None else share(value),
    help="The same, until every operator's estimated error is below this, such as 5%; alone or with --budget.",
)


def measure_within(
    database_path: Path,
    plan: Plan,
    settings: Settings,
    *,
    budget_s: float | None,
    target: float | None,
) -> Collected:
    """Measure within the budget; show progress and the errors reached.

    Raises:
        UsageError, DataError: a package of `kernelcast[train]` is missing; or raised by `collect_within`.
    """
    with needs_extra("collect compute --budget", "collector,train"):
        from kernelcast.sampling.collect import BudgetProgress, collect_within
    # Wrong use makes no database.
    settings.place()
    planned_operators(plan, settings.operators)
    given_s = math.inf if budget_s is None else budget_s
    with Database.open(database_path, create=True) as database, progress("seconds") as report:

        def show(now: BudgetProgress) -> None:
            shown = percent(now.error)
            what = f"{now.operator}: error {shown}, mean of all {percent(now.mean_error)}"
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

points_option = click.option(
    "--points",
    type=click.IntRange(1, MOST_POINTS),
    metavar="N",
    help="Measure only the N most informative workloads of each operator, given --prior.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FewPoints:
    """A prior, and the number of points per operator that correct it."""

    bundle: Bundle
    points: int


def few_points(prior: str | None, points: int | None) -> FewPoints | None:
    """The values of `--prior` and `--points`; None without them.

    Raises:
        UsageError: one is given without the other, or the hardware is unknown.
        DataError: the prior cannot be read.
    """
    if prior is None and points is None:
        return None
    if prior is None or points is None:
        given, lacking = ("--points", "--prior") if prior is None else ("--prior", "--points")
        raise UsageError(f"{given} is given without {lacking}, expected both or neither")
    return FewPoints(bundle=read_prior(prior), points=points)


def measure_by_prior(database_path: Path, plan: Plan, few: FewPoints, settings: Settings) -> Collected:
    """Measure the most informative points of each operator.

    Raises:
        UsageError, DataError: a package of `kernelcast[train]` is missing; or raised by `collect_by_prior`.
    """
    with needs_extra("collect compute --prior", "collector,train"):
        from kernelcast.sampling.by_prior import collect_by_prior
    what_to_measure(plan, settings)  # wrong use makes no database
    with Database.open(database_path, create=True) as database, progress("operators") as report:
        done, chosen = collect_by_prior(database, plan, few.bundle, few.points, settings, report)
    if chosen.apart:
        note(f"note: the prior lacks {', '.join(chosen.apart)}; measured as without a prior", err=True)
    return done
