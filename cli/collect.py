"""`kernelcast collect compute` and `kernelcast collect comm`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from kernelcast.cli.options import (
    again_option,
    database_option,
    device_option,
    dtype_option,
    plan_option,
    processes_option,
    site_option,
    threads_option,
)
from kernelcast.cli.progress import progress
from kernelcast.collector.comm import World, collect_comm
from kernelcast.collector.compute import Again, Collected, collect_compute, what_to_measure
from kernelcast.collector.plan import load_plan
from kernelcast.runtime.errors import DataError, KernelcastError
from kernelcast.store import Database


@click.group()
def collect() -> None:
    """Measure operators and collectives into a database.

    What the database already holds for this hardware and software is not measured again, so an interrupted collection
    goes on where it was.
    """


@collect.command(short_help="Measure every compute operator on one device.")
@database_option("The database; made where there is none.")
@plan_option
@device_option
@dtype_option
@threads_option
@processes_option
@click.option(
    "--operator", "operators", multiple=True, help="Only this operator; may be given several times."
)
@again_option
@site_option
def compute(
    database_path: Path,
    plan: str,
    device: str,
    dtype: str,
    threads: int,
    processes: tuple[int, ...],
    operators: tuple[str, ...],
    again: Again,
    site: str,
) -> None:
    """Measure every compute operator, forward and backward, on one device.

    \b
    kernelcast collect compute --plan quick --db bench.db
    kernelcast collect compute --plan quick --db bench.db --procs-per-node 1,2
    """
    chosen = load_plan(plan)
    # Wrong use makes no database.
    what_to_measure(
        chosen, device=device, dtype=dtype, operators=operators, threads=threads, processes=processes
    )
    with Database.open(database_path, create=True) as database, progress("operators") as report:
        done = collect_compute(
            database,
            chosen,
            device=device,
            dtype=dtype,
            threads=threads,
            processes=processes,
            operators=operators,
            again=again,
            site=site,
            on_progress=lambda p: report(p.done, p.total, p.operator),
        )
    show_collected(done, database_path)


@collect.command(short_help="Measure collectives between the processes of torchrun.")
@database_option("The database; made where there is none.")
@plan_option
@device_option
@dtype_option
@threads_option
@again_option
@site_option
def comm(
    database_path: Path, plan: str, device: str, dtype: str, threads: int, again: Again, site: str
) -> None:
    """Measure all-reduce, all-gather, reduce-scatter and point-to-point between the launcher's processes.

    \b
    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 --no-python kernelcast collect comm --db bench.db
    """
    world = World.from_launcher()
    with _one_voice(world), progress("collectives", shown=world.rank == 0) as report:
        done = collect_comm(
            lambda: Database.open(database_path, create=True),
            load_plan(plan),
            device=device,
            dtype=dtype,
            threads=threads,
            again=again,
            site=site,
            on_progress=lambda p: report(p.done, p.total, p.operator),
        )
    if world.rank == 0:
        show_collected(done, database_path)


@contextmanager
def _one_voice(world: World) -> Iterator[None]:
    """Let one process of a node say what went wrong; the others, which met the same or lost that one, end silently."""
    try:
        yield
    except (KernelcastError, KeyboardInterrupt):
        if world.local_rank == 0:
            raise
        sys.exit(1)


def show_collected(done: Collected, database_path: Path) -> None:
    """Print how many points were measured, and not.

    Raises:
        DataError: the database holds no time of any of them.
    """
    parts = [f"{done.measured} measured"]
    parts += [
        f"{count} {what}"
        for count, what in (
            (done.already_there, "already there"),
            (done.unsupported, "not supported here"),
            (done.failed, "failed"),
        )
        if count
    ]
    click.echo(f"{database_path}: {', '.join(parts)}")
    if done.flagged:
        click.echo(
            f"note: {done.flagged} disturbed or unstable; --again flagged measures those once more", err=True
        )
    if done.first_failure:
        click.echo(f"first failure: {done.first_failure}", err=True)
    if done.failed and not done.measured and not done.already_there:
        raise DataError(f"{database_path}: nothing measured, all points failed; their reasons are stored")
