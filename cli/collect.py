"""`kernelcast collect compute` and `kernelcast collect comm`."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from kernelcast.cli import option
from kernelcast.cli.collect_plan import (
    budget_option,
    measure_by_prior,
    measure_within,
    points_option,
    prior_of,
    target_option,
)
from kernelcast.cli.collect_plan import plan as plan_command
from kernelcast.cli.progress import progress
from kernelcast.cli.terminal import command_line, is_quiet, note, print_next, say, typed_words
from kernelcast.collector.communication.comm import TIMEOUT_S, collect_comm, what_to_exchange
from kernelcast.collector.communication.peers import FailedAloneError, FirstFailedError, LostPeersError
from kernelcast.collector.communication.watchdog import INTERRUPTED
from kernelcast.collector.communication.world import World
from kernelcast.collector.compute import Collected, collect_compute, what_to_measure
from kernelcast.collector.launch import LOST_PEERS, ONE_VOICE, show_workers
from kernelcast.collector.plans.plan_file import load_plan
from kernelcast.collector.plans.plan_ranges import Plan
from kernelcast.collector.settings import Settings
from kernelcast.runtime.errors import DataError, KernelcastError, UsageError
from kernelcast.store import Database


@click.group()
def collect() -> None:
    """Measure operators and collectives into a database.

    Points that the database already holds for this hardware and software are skipped, so an interrupted collection
    resumes.
    """


@collect.command(short_help="Measure every compute operator on one device.")
@option.database("Database to write; created if missing.")
@option.plan
@option.measured
@option.again
@budget_option
@target_option
@option.prior
@points_option
@option.site
def compute(
    database_path: Path,
    plan: str,
    budget_s: float | None,
    target: float | None,
    prior: str | None,
    points: int | None,
    **asked: Any,
) -> None:
    """Measure every compute operator, forward and backward, on one device.

    \b
    kernelcast collect compute --plan quick --db bench.db
    kernelcast collect compute --plan quick --db bench.db --procs-per-node 1,2
    kernelcast collect compute --plan quick --db bench.db --load sustained
    kernelcast collect compute --plan quick --db bench.db --budget 10m --target 5%
    kernelcast collect compute --plan paper --db bench.db --prior a100-sxm --points 5
    """
    chosen, settings = load_plan(plan), Settings(**asked)
    is_alone = settings.processes == (1,)
    if (bundle := prior_of(prior, points)) is not None:
        if budget_s is not None or target is not None or not is_alone:
            raise UsageError("--points goes with neither --budget, --target nor --procs-per-node")
        done = measure_by_prior(database_path, chosen, bundle, points or 0, settings)
    elif budget_s is not None or target is not None:
        if settings.again != "no" or not is_alone:
            raise UsageError("--budget and --target go with neither --again nor --procs-per-node")
        done = measure_within(database_path, chosen, settings, budget_s=budget_s, target=target)
    else:
        what_to_measure(chosen, settings)  # wrong use makes no database
        done = measure_compute(database_path, chosen, settings)
    show_collected(done, database_path)
    comm = command_line("collect", "comm", "--procs", 2, "--db", database_path)
    print_next((comm, "measure collectives between processes"), _training(database_path))


def measure_compute(database_path: Path, plan: Plan, settings: Settings) -> Collected:
    """Measure a plan's compute operators into a database, with a progress bar."""
    with Database.open(database_path, create=True) as database, progress("operators") as report:
        return collect_compute(database, plan, settings, on_progress=report)


collect.add_command(plan_command)


@collect.command(short_help="Measure collectives between processes of one or more nodes.")
@option.database("Database to write; created if missing.")
@option.plan
@option.text(
    "--procs",
    "Number of processes to start on this node. Omit it under torchrun, srun or mpirun.",
    type=click.IntRange(min=2, max=1024),
)
@option.text(
    "--layouts",
    "layout_names",
    "Process groups to measure: NODESxPROCESSES such as 1x2,2x4, or the groups of a parallel degree such as "
    "tp2,dp4,pp2.  [default: all powers of two]",
    default="",
    metavar="LAYOUT[,LAYOUT...]",
)
@option.device
@option.dtype
@option.threads
@option.operators
@option.again
@option.time(
    "--timeout", "timeout_s", "Time a process waits for the others before it aborts.", default_s=TIMEOUT_S
)
@option.site
def comm(
    database_path: Path,
    plan: str,
    procs: int | None,
    layout_names: str,
    timeout_s: float,
    **asked: Any,
) -> None:
    """Measure all-reduce, all-gather, reduce-scatter, all-to-all and point-to-point in groups of processes.

    \b
    kernelcast collect comm --procs 2 --db bench.db
    srun --nodes 2 --ntasks-per-node 4 kernelcast collect comm --db bench.db
    torchrun --nproc-per-node 2 --no-python kernelcast collect comm --db bench.db
    """
    settings = Settings(**asked)
    if procs is not None:
        if "RANK" in os.environ or any(
            os.environ.get(name, "1") != "1" for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
        ):
            raise UsageError("--procs is given under torchrun, srun or mpirun, expected one of them")
        here = World(rank=0, local_rank=0, size=procs, local_size=procs)
        what_to_exchange(load_plan(plan), here, settings, layout_names)  # wrong use starts no processes
        sys.stdout.flush()
        # This command in worker processes, as typed but without --procs.
        words = typed_words(without=("--procs",))
        status = show_workers("kernelcast.cli.main", words, processes=procs, threads=settings.threads)
        if status == 0:
            print_next(_training(database_path))
        sys.exit(status)
    world = World.from_launcher()
    with _one_error_per_node(world), progress("collectives", shown=world.rank == 0) as report:
        done = collect_comm(
            lambda: Database.open(database_path, create=True),
            load_plan(plan),
            settings,
            layout_names=layout_names,
            timeout_s=timeout_s,
            on_progress=report,
        )
    if world.rank == 0:
        show_collected(done, database_path)
        if not os.environ.get(ONE_VOICE):
            print_next(_training(database_path))


def _training(database_path: Path) -> tuple[str, str]:
    return command_line("train", "--db", database_path, "-o", "here.kcast"), "fit regressors"


@contextmanager
def _one_error_per_node(world: World) -> Iterator[None]:
    """Print an error from one process per node; the others, which met the same error, end silently."""
    launched_here = bool(os.environ.get(ONE_VOICE))
    try:
        yield
    except FirstFailedError:
        sys.exit(1)
    except FailedAloneError:
        raise
    except LostPeersError:
        if launched_here:
            sys.exit(LOST_PEERS)
        if world.local_rank == 0:
            raise
        sys.exit(1)
    except KeyboardInterrupt:
        if launched_here or world.local_rank != 0:
            sys.exit(INTERRUPTED)
        raise
    except KernelcastError:
        if world.local_rank == 0:
            raise
        sys.exit(1)


def show_collected(done: Collected, database_path: Path) -> None:
    """Print the number of points measured, skipped and failed; DataError where every point failed."""
    further = {
        "already there": done.already_there, "not supported here": done.unsupported, "failed": done.failed
    }  # fmt: skip
    parts = [f"{done.measured} measured", *(f"{count} {what}" for what, count in further.items() if count)]
    say(f"{database_path}: {', '.join(parts)}")
    if done.flagged:
        note(f"note: {done.flagged} disturbed or unstable; --again flagged measures them again", err=True)
    if done.first_failure and not is_quiet():
        click.echo(f"first failure: {done.first_failure}", err=True)
    if done.failed and not done.measured and not done.already_there:
        raise DataError(f"{database_path}: nothing measured, all points failed; their reasons are stored")
