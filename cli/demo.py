"""`kernelcast demo`: measure, train, predict and compare on this machine."""

import sys
from pathlib import Path

import click

from kernelcast.cli.collect import measure_compute, show_collected
from kernelcast.cli.measuring_options import again_option
from kernelcast.cli.options import FILE
from kernelcast.cli.progress import progress
from kernelcast.cli.tables import print_components, print_table
from kernelcast.cli.terminal import command_line, is_quiet, print_next, say
from kernelcast.cli.train import show_training
from kernelcast.collector.launch import show_workers
from kernelcast.collector.machine.probe import probe, resolve_device
from kernelcast.collector.plans.plan_file import load_plan
from kernelcast.collector.settings import Again, Settings
from kernelcast.demo.config import DemoConfig
from kernelcast.demo.loop import THREADS, Comparison, predict_layouts, store_comparisons, train_layouts
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.estimate.doubts import warning_lines
from kernelcast.runtime.views.formatting import seconds
from kernelcast.store import Database
from kernelcast.train.fit import train_bundle


@click.command()
@click.option(
    "--db",
    "database_path",
    type=FILE,
    default=Path("bench.db"),
    help="Database to write; created if missing.",
)
@click.option("-o", "--output", type=FILE, default=Path("here.kcast"), help="Bundle to write.")
@click.option("--config", type=FILE, help="A TOML file like demo/demo.toml.")
@again_option
def demo(database_path: Path, output: Path, config: Path | None, again: Again) -> None:
    """Measure this machine's CPU, train a bundle, predict the step time of a small GPT, train it for real and compare.

    \b
    kernelcast demo
    """
    chosen = DemoConfig.load(config)
    plan, settings = load_plan(chosen.plan), Settings(device="cpu", threads=THREADS, again=again)
    if not output.parent.is_dir():
        raise DataError(f"{output}: its folder does not exist")
    keys = probe(resolve_device("cpu"), threads=THREADS)
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
                seed=chosen.seed,
                jobs=0,
                on_progress=report,
            )
        show_training(trained, is_brief=is_quiet())
        _title(5, f"predict {chosen.model.name}, then train it for real")
        estimates = predict_layouts(chosen, output)
        with progress("training") as report:
            comparisons = train_layouts(chosen, estimates, report)
        store_comparisons(database, keys, comparisons)
    for comparison in comparisons:
        if not is_quiet():
            _show_components(comparison)
    _show_steps(comparisons)
    print_next(
        (command_line("db", "info", database_path), "contents of the database"),
        (command_line("bundle", "info", output), "regressors and their errors"),
        (command_line("explore", database_path, "--bundle", output), "both in the browser"),
    )


def _title(number: int, text: str) -> None:
    click.secho(f"\n[{number}/5] {text}", bold=True)


def _collect_comm(database_path: Path, plan: str, again: Again) -> None:
    """Run `kernelcast collect comm` under torchrun as a user does; it shows its own progress."""
    arguments = ["collect", "comm", "--db", str(database_path), "--plan", plan, "--device", "cpu"]
    arguments += ["--threads", str(THREADS), *(["--quiet"] if is_quiet() else [])]
    arguments += ["--again", again] if again != "no" else []
    sys.stdout.flush()
    status = show_workers("kernelcast.cli.main", arguments, processes=2, threads=THREADS)
    if status != 0:
        raise DataError(f"collect comm ended with exit status {status}; its own message is above")


def _show_components(comparison: Comparison) -> None:
    say(f"\n{comparison.label}: components, measured in traced steps (quiet)")
    print_components(comparison.components())
    for line in warning_lines(comparison.estimate.doubts, hint="predict --json has each"):
        say(f"  note: {line}")


def _show_steps(comparisons: list[Comparison]) -> None:
    say("\nstep time, predicted from quiet operators against the quiet (10th percentile) real step")
    print_table(
        comparisons,
        ("pp-tp-dp", lambda one: one.label),
        ("predicted", lambda one: seconds(one.estimate.step_time_s)),
        ("measured", lambda one: seconds(one.steps.quiet_s)),
        ("error", lambda one: f"{one.error:+.1%}"),
        ("minimum", lambda one: seconds(one.steps.minimum_s)),
        ("median", lambda one: seconds(one.steps.median_s)),
        ("steps", lambda one: str(len(one.steps.steps_s))),
        indent="  ",
    )
