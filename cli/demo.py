"""`kernelcast demo`: measure, train, predict and compare on this machine."""

import sys
from functools import cache
from pathlib import Path

import click

from kernelcast.cli import option
from kernelcast.cli.collect import measure_compute, show_collected
from kernelcast.cli.progress import progress
from kernelcast.cli.terminal import command_line, heading, is_quiet, print_next
from kernelcast.cli.train import show_training
from kernelcast.cli.validate_run import show_run
from kernelcast.collector.launch import show_workers
from kernelcast.collector.machine.probe import probe, resolve_device
from kernelcast.collector.plans.plan_file import load_plan
from kernelcast.collector.settings import Again, Settings
from kernelcast.demo.config import DemoConfig
from kernelcast.runtime import Estimator
from kernelcast.runtime.errors import DataError
from kernelcast.store import Database
from kernelcast.train.fit import train_bundle
from kernelcast.validate.run import RunOptions, validate_run

THREADS = 1
"""Of each process: a stage of the pipeline."""


@click.command()
@option.file("--db", "database_path", "Database to write; created if missing.", default=Path("bench.db"))
@option.file("-o", "--output", "Bundle to write.", default=Path("here.kcast"))
@option.file("--config", "A TOML file like demo/demo.toml.")
@option.again
def demo(database_path: Path, output: Path, config: Path | None, again: Again) -> None:
    """Measure this machine's CPU, train a bundle, predict the step time of a small GPT, train it for real and compare.

    \b
    kernelcast demo
    """
    settings = Settings(device="cpu", threads=THREADS, again=again)
    chosen = DemoConfig.load(config, dtype=settings.dtype)
    plan, place = load_plan(chosen.plan), resolve_device("cpu")
    if not output.parent.is_dir():
        raise DataError(f"{output}: its folder does not exist")
    keys_of = cache(lambda processes: probe(place, threads=THREADS, processes=processes))
    keys = keys_of(1)
    _title(1, f"this machine: {keys.compute.description}; {keys.software.description}")
    _title(2, f"measure operators, forward and backward (plan {chosen.plan}) into {database_path}")
    show_collected(measure_compute(database_path, plan, settings), database_path)
    _title(3, "measure collectives between two processes (torchrun, gloo)")
    _collect_comm(database_path, chosen.plan, again)
    _title(4, f"fit one regressor per operator and direction into {output}")
    with Database.open(database_path, create=True) as database:
        with progress("regressors") as report:
            trained = train_bundle(
                database,
                output,
                dtype=settings.dtype,
                hardware=keys.compute.digest,
                software=keys.software.digest,
                fabric=keys.fabric.digest,
                seed=chosen.runs.seed,
                jobs=0,
                on_progress=report,
            )
        show_training(trained)
        models = dict.fromkeys(job.model.name for job in chosen.runs.jobs)
        _title(5, f"predict {', '.join(models)}, then train it for real")
        options = RunOptions(repetitions=1, steps=chosen.steps, threads=THREADS, again=again != "no")
        with progress("training") as report:
            result = validate_run(database, chosen.runs, Estimator.load(output), keys_of, options, report)
    show_run(result)
    print_next(
        (command_line("db", "info", database_path), "contents of the database"),
        (command_line("bundle", "info", output), "regressors and their errors"),
        (command_line("explore", database_path, "--bundle", output), "both in the browser"),
    )


def _title(number: int, text: str) -> None:
    click.echo(f"\n{heading(f'[{number}/5] {text}')}")


def _collect_comm(database_path: Path, plan: str, again: Again) -> None:
    """Run `kernelcast collect comm` under torchrun as a user does; it shows its own progress."""
    arguments = ["collect", "comm", "--db", str(database_path), "--plan", plan, "--device", "cpu"]
    arguments += ["--threads", str(THREADS), *(["--quiet"] if is_quiet() else [])]
    arguments += ["--again", again] if again != "no" else []
    sys.stdout.flush()
    status = show_workers("kernelcast.cli.main", arguments, processes=2, threads=THREADS)
    if status != 0:
        raise DataError(f"collect comm ended with exit status {status}; its own message is above")
