"""`kernelcast walltime`: the time limit of a job, for people and for schedulers."""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
from click.core import ParameterSource

from kernelcast.cli import option
from kernelcast.cli.fields import field_options
from kernelcast.cli.tables import text_table
from kernelcast.cli.terminal import Facts, facts, heading, is_quiet, say
from kernelcast.runtime import Estimator, UsageError
from kernelcast.runtime.errors import needs_extra, one_line, shown
from kernelcast.runtime.frameworks.slurm import OPTIONS as SLURM_OPTIONS
from kernelcast.runtime.json_text import json_text
from kernelcast.runtime.request.fields import renamed
from kernelcast.runtime.small_file import STDIN
from kernelcast.runtime.views.formatting import between, seconds
from kernelcast.walltime import (
    Answer,
    Job,
    answer,
    find_job,
    format_slurm,
    format_time,
    read_time_limit,
    script_job,
    slurm_allocation,
    slurm_environment,
    whole_seconds,
)
from kernelcast.walltime.fields import JOB_FIELDS
from kernelcast.walltime.job import MAX_HEAD_BYTES, decoded


def _slurm_options(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    options: dict[str, str] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or name not in SLURM_OPTIONS:
            known = ", ".join(SLURM_OPTIONS)
            raise UsageError(f"--slurm is {shown(value)}, expected NAME=VALUE with a name among {known}")
        options[name] = text
    return options


def _time_limit_s(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    asked_s = read_time_limit(value)
    if asked_s is None:
        raise UsageError(f"--asked is {shown(value)}, expected a time limit such as 00:30:00 or 1-12:00:00")
    return asked_s


@click.command("walltime")
@click.argument("job", required=False, metavar="[JOB]")
@field_options(*JOB_FIELDS.values(), as_text=True)
@option.text(
    "--asked", "Time limit of the job; warns if it is too short.", callback=_time_limit_s, metavar="TIME"
)
@option.several(
    "--slurm",
    "slurm_options",
    "Slurm options of the job: nodes=2, gpus-per-node=4, …  [default: the script's #SBATCH lines]",
    callback=_slurm_options,
    metavar="NAME=VALUE",
)
@option.flag(
    "--untrusted", "JOB comes from another user: it may not name files, and files in its folder are not read."
)
@option.flag("--k8s", "JOB is a Kubernetes manifest: print it with time limits set in its Jobs.")
@option.flag("--overwrite", "With --k8s: replace existing time limits.")
@option.path("--output", "-o", "With --k8s: write the manifest to FILE.")
@option.no_calibration
@option.choice(
    ["table", "slurm", "seconds", "json"],
    "--format",
    "form",
    "slurm: time limit rounded up to the minute; json: kernelcast.walltime/2.",
    default="table",
)
@option.text("--json", "form", "Same as --format json.", flag_value="json")
def walltime(
    *,
    job: str | None,
    asked: float | None,
    slurm_options: dict[str, str],
    untrusted: bool,
    k8s: bool,
    overwrite: bool,
    output: Path | None,
    no_calibration: bool,
    form: str,
    **fields: str | None,
) -> None:
    """Predict how long a job takes, and the time limit to request.

    JOB is a batch script with #KERNELCAST lines, a .toml job file, a folder with a kernelcast.toml, or - for a script
    on standard input; by default, kernelcast.toml in the current folder. A field is taken from the first of these that
    sets it: options, #KERNELCAST lines, kernelcast.toml in the script's folder, the site file.

    \b
    kernelcast walltime train.sbatch --tokens 1e9 --price 2.50
    kernelcast walltime --k8s job.yaml | kubectl apply -f -
    """
    _check_k8s(k8s)
    given = renamed({name: text for name, text in fields.items() if text is not None}, JOB_FIELDS)
    if k8s:
        with needs_extra("--k8s", "k8s"):
            from kernelcast.cli.walltime_k8s import rewrite_file
        rewrite_file(job, options=given, overwrite=overwrite, output=output)
        return
    described = _job(job, given, untrusted)
    if described.off:
        raise UsageError(f"{job}: contains #KERNELCAST off, expected a job with prediction enabled")
    options = {**described.slurm_options, **slurm_options}
    if job is None:
        options = {**slurm_environment(os.environ), **options}
    found = answer(
        described,
        allocation=slurm_allocation(options),
        asked_s=asked,
        load=partial(Estimator.load, calibrated=not no_calibration),
    )
    click.echo(_RENDERERS[form](found))
    for line in () if is_quiet() else found.warnings:
        # Only tables are wrapped: programs read the other formats line by line.
        (say if form == "table" else click.echo)(f"kernelcast: warning: {one_line(line)}", err=True)


def _check_k8s(k8s: bool) -> None:
    """Refuse options that would be ignored with or without --k8s."""
    context = click.get_current_context()
    meaningless = (
        ("asked", "slurm_options", "untrusted", "no_calibration", "form") if k8s else ("overwrite", "output")
    )
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in meaningless and source is ParameterSource.COMMANDLINE:
            found = "with --k8s, expected one of them" if k8s else "without --k8s, expected both"
            raise UsageError(f"{parameter.opts[0]} is given {found}")


def _job(job: str | None, fields: dict[str, str], untrusted: bool) -> Job:
    if job == STDIN:
        text = decoded(sys.stdin.buffer.read(MAX_HEAD_BYTES))
        folder = None if untrusted else Path.cwd()
        return script_job(text, name="batch script", folder=folder, options=fields, environment=os.environ)
    if untrusted:
        raise UsageError(
            f"--untrusted is given with {job or 'no JOB'}, expected - (a script on standard input)"
        )
    return find_job(Path(job) if job is not None else None, options=fields, environment=os.environ)


def render(found: Answer) -> str:
    """An answer as text: the time limit, node-hours and cost, and the settings they follow from."""
    times, estimate = found.walltime, found.estimate
    layout = estimate.parallelism
    jobs = f" for each of {times.jobs} jobs" if times.jobs > 1 else ""
    columns = (found.expected, found.requested)
    rows = [
        ["time", *(format_time(held.time_s) for held in columns)],
        ["node-hours", *(f"{held.node_hours:,.2f}" for held in columns)],
        ["GPU-hours", *(f"{held.gpu_hours:,.2f}" for held in columns)],
    ]
    if found.price is not None:
        rows.append(["cost", *(f"{held.cost or 0:,.2f}" for held in columns)])
    step, source = times.step, estimate.provenance
    lines: Facts = {
        "job": f"between {format_time(times.low_s)} and {format_time(times.high_s)} (90 % interval); "
        f"requested: its upper end and a margin of {times.margin:.0%}",
        "steps": f"{times.steps:,} of {seconds(step.expected_s)} "
        f"({between(step.low_s, step.high_s, like=step.expected_s)})",
        "hardware": "; ".join(source.compute) or "not recorded",
        "layout": f"{layout.degrees} = {found.gpus} GPU(s) "
        f"on {found.nodes} node(s), {estimate.per_node_text}",
        "stack": None if source.stack is None else str(source.stack),
        "calibration": None if source.calibration is None else source.calibration.summary,
    }
    sections = [
        heading(f"time limit {found.slurm or format_time(times.walltime_s)}{jobs}"),
        text_table(("", "expected", "requested"), rows, indent="  "),
        facts(lines),
    ]
    if is_quiet():
        return "\n\n".join(sections)
    settings = [
        [name, one_line(str(given.value)), one_line(given.origin)]
        for name, given in found.settings.given.items()
    ]
    return "\n\n".join([*sections, text_table(("setting", "value", "from"), settings, indent="  ")])


_RENDERERS: dict[str, Callable[[Answer], str]] = {
    "table": render,
    "slurm": lambda found: format_slurm(found.walltime.walltime_s),
    "seconds": lambda found: str(whole_seconds(found.walltime.walltime_s)),
    "json": lambda found: json_text(found.to_dict(), indent=2),
}
