"""`kernelcast validate run`: trains on this machine and compares with a bundle's predictions."""

from functools import cache
from pathlib import Path
from typing import Any

import click

from kernelcast.cli import option
from kernelcast.cli.progress import progress
from kernelcast.cli.tables import print_components, print_table
from kernelcast.cli.terminal import Shown, is_quiet, note, say
from kernelcast.collector.machine.probe import probe, resolve_device
from kernelcast.collector.machine.probe_cpu import available_cores
from kernelcast.runtime import Estimator
from kernelcast.runtime.estimate.doubts import warning_lines
from kernelcast.runtime.terminations import terminations_interrupt
from kernelcast.runtime.views.formatting import seconds
from kernelcast.store import Database
from kernelcast.validate.run import RunOptions, predict_jobs, validate_run
from kernelcast.validate.run_config import RunConfig
from kernelcast.validate.run_report import ComparedJob, RunReport

_LEAST_SHARE = 0.0005  # of a step, for a row of its own among the operators


@click.command("run")
@option.bundle_path
@option.database("Database for the steps; created if missing.")
@option.file(
    "--config",
    "config_path",
    "Configurations: here, modern, or a file in the format of validate/here.toml.  [default: here]",
)
@option.count("--repetitions", "Repetitions of the validation.", default=3)
@option.count("--steps", "Timed steps per configuration and repetition.", default=20)
@option.several("--only", "Train only this layout; repeatable.", metavar="PP-TP-DP")
@option.device
@option.dtype
@option.threads
@option.count(
    "--max-processes", "Refuse layouts with more processes.  [default: cores / threads, or CUDA devices]"
)
@option.time(
    "--timeout", "timeout_s", "Abort if no configuration finishes a repetition in this time.", default_s=300
)
@option.no_calibration
@option.flag("--again", "Train configurations again that the database already holds.")
@option.flag("--by-operator", "with_operators", "Show each operator's time in the step.")
@option.json
def run(
    *,
    bundle_path: Path,
    database_path: Path,
    config_path: Path | None,
    only: tuple[str, ...],
    device: str,
    dtype: str,
    threads: int,
    max_processes: int | None,
    no_calibration: bool,
    with_operators: bool,
    **asked: Any,
) -> Shown:
    """Train models in several layouts, and compare predicted with measured components.

    Steps are stored as soon as they are measured. Configurations that the database already holds for this hardware and
    software are not trained again. Predictions are compared with the fastest step.

    \b
    kernelcast validate run --bundle here.kcast --db bench.db
    """
    place = resolve_device(device)
    config = RunConfig.load(config_path, dtype=dtype).only(only)
    most, reason = _most_processes(place.type, max_processes, threads)
    config.check_processes(most, reason)
    estimator = Estimator.load(bundle_path, calibrated=not no_calibration)
    predict_jobs(config, estimator)
    options = RunOptions(device=place.type, threads=threads, **asked)
    keys_of = cache(lambda processes: probe(place, threads=threads, processes=processes))
    with (
        terminations_interrupt(),
        Database.open(database_path, create=True) as database,
        progress("training") as report,
    ):
        result = validate_run(database, config, estimator, keys_of, options, report)

    return Shown(result.to_dict(), lambda: show_run(result, with_operators=with_operators))


def show_run(result: RunReport, *, with_operators: bool = False) -> None:
    """Show predicted and measured components of every configuration, unless quiet, and a table of their steps."""
    for job in result.jobs:
        if not is_quiet():
            _show_components(job)
        if with_operators:
            _show_operators(job)
    _show_summary(result)


def _most_processes(device_type: str, asked: int | None, threads: int) -> tuple[int, str]:
    if asked is not None:
        return asked, "--max-processes"
    if device_type == "cuda":
        import torch

        return torch.cuda.device_count(), "its devices; --max-processes allows more"
    cores = available_cores()
    share = "" if threads == 1 else f", {threads} threads each"
    return cores // threads, f"its cores{share}; --max-processes allows more"


def _title(job: ComparedJob) -> str:
    layout = job.job.parallelism
    parts = [f"{job.job.model.name} {job.job.label}", f"{layout.micro_batches} × {layout.micro_batch}"]
    if layout.schedule != "1f1b":
        chunks = f" {layout.virtual_stages}" if layout.virtual_stages > 1 else ""
        parts.append(f"{layout.schedule}{chunks}")
    parts += [f"ZeRO {layout.zero}"] * (layout.dp > 1)
    parts += [f"recompute {layout.recompute}"] * (layout.recompute != "none")
    return ", ".join(parts)


def _show_components(job: ComparedJob) -> None:
    say(f"\n{_title(job)}")
    print_components(job.components())
    for line in warning_lines(job.simulated.doubts):
        say(f"  note: {line}")


def _show_operators(job: ComparedJob) -> None:
    operators = job.operators()
    rest_s = [one.measured_s for one in operators if one.share < _LEAST_SHARE and not one.calls]
    print_table(
        [one for one in operators if one.share >= _LEAST_SHARE or one.calls],
        ("operator", lambda one: one.name if one.known else f"({one.name})"),
        ("direction", lambda one: one.direction),
        ("calls", lambda one: str(one.calls or "-")),
        ("measured µs", lambda one: _per_call(one.measured_s, one.calls)),
        ("predicted µs", lambda one: _per_call(one.predicted_s, one.calls)),
        ("error", lambda one: "-" if one.error is None else f"{one.error:+.1%}"),
        ("share", lambda one: f"{one.share:.2%}"),
        ("ms in the step", lambda one: f"{1e3 * (one.predicted_s - one.measured_s):+.2f}"),
        indent="  ",
    )
    if rest_s:
        say(f"  and {len(rest_s)} kernels of no operator, {1e3 * sum(rest_s):.2f} ms in total")
    if job.traced is not None:
        traced_s, gaps_s = job.traced
        say(
            f"  traced step {seconds(traced_s)}, {traced_s / job.minimum_s - 1:+.1%} against the fastest step without "
            f"profiler; {gaps_s / traced_s:.1%} of it is idle, within passes"
        )


def _per_call(time_s: float, calls: int) -> str:
    return f"{time_s * (1e6 / calls):.1f}" if time_s and calls else "-"


def _show_summary(result: RunReport) -> None:
    say("\nstep time, predicted from the operators' times against the fastest real step")
    print_table(
        result.jobs,
        ("configuration", _title),
        ("predicted", lambda job: seconds(job.simulated.step_time_s)),
        ("minimum", lambda job: seconds(job.minimum_s)),
        ("p10", lambda job: seconds(job.p10_s)),
        ("median", lambda job: seconds(job.median_s)),
        ("error", lambda job: f"{job.error:+.1%}"),
        ("closed form", lambda job: f"{job.closed_form_error:+.1%}"),
        ("interval", lambda job: {True: "inside", False: "outside", None: "-"}[job.inside]),
        ("noise", lambda job: "-" if job.noise is None else f"{job.noise:.1%}"),
        indent="  ",
    )
    say(
        f"mean of absolute errors {result.mean_abs_error:.1%}, worst {result.worst.error:+.1%} "
        f"({_title(result.worst)})"
    )
    for number, (mean, worst) in enumerate(result.of_repetitions(), start=1):
        say(f"  repetition {number}: mean {mean:.1%}, worst {worst:.1%}")
    say(f"inside the predicted 90 % interval: {result.inside} of {len(result.jobs)} fastest steps")
    noise = f"differ by up to {max(result.noises):.1%}" if result.noises else "cannot be compared (one round)"
    say(f"noise: fastest steps of rounds {noise}, reference products by {result.reference_spread:.1%}")
    if result.calibration is not None:
        note(f"note: calibration of predictions: {result.calibration.summary}")
    if not result.same_hardware:
        note(f"note: the bundle was measured on other hardware; this is {result.hardware}")
