"""`--prior NAME|FILE.kcast --points N` of `kernelcast collect compute` and `collect plan`."""

from pathlib import Path

import click

from kernelcast.cli.measuring_options import read_prior
from kernelcast.cli.progress import progress
from kernelcast.cli.terminal import note
from kernelcast.collector.compute import Collected, what_to_measure
from kernelcast.collector.plans.plan import Plan
from kernelcast.collector.settings import Settings
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError, needs_extra
from kernelcast.store import Database

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
        done, chosen = collect_by_prior(
            database,
            plan,
            few.bundle,
            few.points,
            settings,
            on_progress=lambda p: report(p.done, p.total, p.operator),
        )
    if chosen.apart:
        note(f"note: the prior lacks {', '.join(chosen.apart)}; measured as without a prior", err=True)
    return done
