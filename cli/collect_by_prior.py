"""`kernelcast collect compute --prior NAME|FILE.kcast --points N`, and the same of `collect plan`."""

from dataclasses import dataclass
from pathlib import Path

import click

from kernelcast.cli.prior import read_prior
from kernelcast.cli.progress import progress
from kernelcast.cli.terminal import note
from kernelcast.collector.compute import Again, Collected, what_to_measure
from kernelcast.collector.plans.plan import Plan
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.load import Load
from kernelcast.store import Database

MOST_POINTS = 160

points_option = click.option(
    "--points",
    type=click.IntRange(1, MOST_POINTS),
    metavar="N",
    help="Of each operator only the N workloads of the plan's ranges that tell most beside --prior.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FewPoints:
    """A prior, and how many points of each operator are measured beside it."""

    bundle: Bundle
    points: int


def few_points(prior: str | None, points: int | None) -> FewPoints | None:
    """What `--prior` and `--points` ask for; None without them.

    Raises:
        UsageError: one of them is given alone, or there is no such hardware.
        DataError: the prior cannot be read.
    """
    if prior is None and points is None:
        return None
    if prior is None or points is None:
        given, lacking = ("--points", "--prior") if prior is None else ("--prior", "--points")
        raise UsageError(f"{given} is given without {lacking}, expected both or neither")
    return FewPoints(bundle=read_prior(prior), points=points)


def measure_by_prior(
    database_path: Path,
    plan: Plan,
    few: FewPoints,
    *,
    device: str,
    dtype: str,
    threads: int,
    load: Load | None,
    operators: tuple[str, ...],
    again: Again,
    site: str,
) -> Collected:
    """Measure the most telling points of each operator.

    Raises:
        UsageError, DataError: a package of `kernelcast[train]` is missing, or what `collect_by_prior` raises.
    """
    try:
        from kernelcast.sampling.by_prior import collect_by_prior
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("kernelcast"):
            raise
        raise UsageError(
            f"collect compute --prior needs the package {error.name}, which is not installed; "
            "expected: pip install 'kernelcast[collector,train]'"
        ) from error
    # Wrong use makes no database.
    what_to_measure(plan, device=device, dtype=dtype, operators=operators, threads=threads)
    with Database.open(database_path, create=True) as database, progress("operators") as report:
        done, chosen = collect_by_prior(
            database,
            plan,
            few.bundle,
            few.points,
            device=device,
            dtype=dtype,
            threads=threads,
            load=load,
            operators=operators,
            again=again,
            site=site,
            on_progress=lambda p: report(p.done, p.total, p.operator),
        )
    if chosen.apart:
        note(f"note: the prior lacks {', '.join(chosen.apart)}; measured as for a first fit", err=True)
    return done
