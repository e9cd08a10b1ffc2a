"""`kernelcast compare`: a measured step against its prediction, and the causes of the difference."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click

from kernelcast.cli import option
from kernelcast.cli.fields import (
    check_effect,
    chosen_bundle,
    field_options,
    given_fields,
    hardware_names,
    memory_options,
)
from kernelcast.cli.frameworks import choose_for, layout_option, model_of, read_fields
from kernelcast.cli.tables import print_table, text_table
from kernelcast.cli.terminal import Shown, command_line, is_quiet, print_next, say
from kernelcast.runtime import Estimate, Estimator, UsageError
from kernelcast.runtime.answers.fabric_choice import find_fabric
from kernelcast.runtime.estimate.doubts import warning_lines
from kernelcast.runtime.output_file import check_target
from kernelcast.runtime.request.field_types import number
from kernelcast.runtime.request.fields import REQUEST, FrameworkName
from kernelcast.runtime.request.layout import read_request
from kernelcast.runtime.views.formatting import percent, rate, seconds
from kernelcast.validate.compare.compared_step import (
    ComparedStep,
    compare_log,
    compare_stated,
    compare_traces,
)
from kernelcast.validate.compare.published_steps import published_like
from kernelcast.validate.compare.rows import Row
from kernelcast.validate.compare.storing import keep_in_database, keep_in_file

_MIB = 2**20
_MFU = number(1, 100, "percent above 1, at most 100, such as 43", above=True)
_PART_TITLES = {
    "forward": "forward passes",
    "backward": "backward passes",
    "update": "update",
    "other": "other compute",
    "communication": "exposed communication",
    "copies": "exposed copies and fills",
    "host": "idle: host late",
    "waiting": "idle: waiting",
}


@click.command("compare")
@click.argument("traces", metavar="[DB|TRACE]...", nargs=-1, type=option.PATH)
@option.path("--log", "log_path", "Read step times from a training log instead of traces.")
@option.text("--step-time", "step_s", "Take this step time instead of traces.", metavar="SECONDS", type=float)
@option.text(
    "--tokens-per-second",
    "tokens_per_s_per_gpu",
    "Tokens per second per GPU, as torchtitan prints them.",
    metavar="NUMBER",
    type=float,
)
@option.text("--mfu", "mfu_percent", "Model FLOPs utilization, such as 43.", metavar="PERCENT")
@option.count("--gpus", "Number of devices; determines dp.")
@option.bundle
@option.model_or_layout
@field_options(*REQUEST.values())
@layout_option
@memory_options()
@option.no_calibration
@option.text(
    "--run",
    "run_id",
    "First characters of the run's id, if a database has several.",
    default="",
    metavar="ID",
)
@option.count("--top", "Number of operators to list.", default=12)
@option.path("--keep", "runs_path", "Write the step to a runs file, for validate add.")
@option.text("--site", "Site name in the file of --keep.", default="own runs")
@option.path("--db", "database_path", "Store traces, step and prediction in this database.")
@option.json
def compare(
    *,
    traces: tuple[Path, ...],
    log_path: Path | None,
    step_s: float | None,
    tokens_per_s_per_gpu: float | None,
    mfu_percent: str | None,
    run_id: str,
    top: int,
    runs_path: Path | None,
    site: str,
    database_path: Path | None,
    **asked: Any,
) -> Shown:
    """Compare the measured step of a real run with its prediction, and list the causes of lost time.

    Takes the traces of a run, a folder with the traces of its ranks, or a database of traces. --log takes the step
    times printed by Megatron-LM, torchtitan, NeMo, DeepSpeed, Hugging Face Trainer or Composer instead; --step-time,
    --tokens-per-second and --mfu take one number: they show whether the run is slow, but not why. With --hardware,
    published steps of the same model on this device are listed too.

    \b
    kernelcast compare profiles/ --hardware h100-sxm --model llama-3-8b --dp 8 --micro-batch 1 --micro-batches 4
    kernelcast compare --log train.log --hardware h100-sxm --model llama-3-8b --layout train.sh
    kernelcast compare --tokens-per-second 6200 --hardware h100-sxm --model llama-3.1-8b --gpus 8 --zero 3 \
--micro-batch 2 --micro-batches 1 --recompute full
    """
    measured = (traces or None, log_path, step_s, tokens_per_s_per_gpu, mfu_percent)
    if (given := sum(one is not None for one in measured)) != 1:
        found = f"{given} measurements are" if given else "no measurement is"
        raise UsageError(
            f"{found} given, expected one: traces, --log, --step-time, --tokens-per-second or --mfu"
        )
    mfu = None if mfu_percent is None else _MFU.parse("--mfu", mfu_percent.rstrip("% ")) / 100
    stated = {"step_s": step_s, "tokens_per_s_per_gpu": tokens_per_s_per_gpu, "mfu": mfu}
    if runs_path is not None:
        check_target(runs_path, "--keep")
    estimate, hardware = _predicted(**asked), asked["hardware"] or ""
    if log_path is not None:
        compared = compare_log(log_path, estimate)
    elif traces:
        compared = compare_traces(traces, estimate, run_id=run_id)
    else:
        compared = compare_stated(estimate, **stated)
    compared = replace(compared, published=published_like(estimate, hardware))
    if runs_path is not None:
        source = log_path.name if log_path is not None else "torch.profiler" if traces else "stated"
        about = {"site": site, "source": source, "device": hardware, "fabric": asked["fabric"] or ""}
        keep_in_file(compared, runs_path, **about)
    kept = "" if database_path is None else keep_in_database(compared, traces, database_path)

    def show() -> None:
        _show(compared, top)
        if runs_path is not None:
            say(f"\n{runs_path}: step written")
        if kept:
            say(f"\n{database_path}: step {kept[:12]} with its prediction stored")
        if runs_path is not None:
            print_next((command_line("validate", "add", runs_path), "include it in validate steps"))

    return Shown(compared.to_dict(), show)


def _predicted(
    *,
    bundle: str | None,
    hardware: str | None,
    model_name: str | None,
    layout: str | None,
    gpus: int | None,
    no_calibration: bool,
    **fields: Any,
) -> Estimate:
    path = chosen_bundle(bundle, hardware)
    given = given_fields(fields)
    found, file = model_of(model_name, layout, fields["sequence_length"])
    if file is not None:
        given, _ = read_fields(file, found.model, given, gpus)
    elif gpus is not None:
        from kernelcast.runtime.frameworks.layout_files import with_devices

        given |= {"devices": gpus}
        given = with_devices(given, given)
    fabric = find_fabric(given["fabric"]) if "fabric" in given else None
    chosen = choose_for(given, hardware=hardware_names(hardware), file=file)
    estimator = Estimator.load(path, calibrated=not no_calibration, stack=chosen.stack)
    estimate = estimator.predict(model=found.model, fabric=fabric, **read_request(chosen.values))
    check_effect(fields, estimate.parallelism, is_searched=False)
    return estimate


def _show(compared: ComparedStep, top: int) -> None:
    estimate = compared.estimate
    ends = estimate.interval_s
    interval = "" if ends is None else f" ({' to '.join(map(seconds, ends))}, 90 %)"
    times = compared.steps_s
    of = f"median of {len(times)} steps, {seconds(min(times))} to {seconds(max(times))}"
    if compared.traced is None and compared.logged is None:
        of = f"as stated, {rate(compared.tokens_per_s_per_gpu)} tokens/s per GPU"
    if compared.logged is not None:
        of = f"{compared.logged.framework}'s log: {of}"
    say(f"measured   {seconds(compared.measured_s)}, {of}")
    say(f"predicted  {seconds(estimate.step_time_s)}{interval}")
    side = {"slow": "above", "fast": "below"}.get(compared.verdict, "inside")
    against = f"{compared.difference:+.1%} against the prediction"
    say(f"verdict    {compared.verdict}: {against}, {side} its interval")
    if compared.slower_than is not None:
        say(f"           slower than {percent(compared.slower_than, digits=0)} of the predicted distribution")
    for one in compared.published:
        say(f"published  {one.line(compared.tokens_per_s_per_gpu)}")
        low, high = one.tokens_per_s_per_gpu
        is_usual = compared.verdict == "slow" and low <= compared.tokens_per_s_per_gpu <= high
        if is_usual and estimate.provenance.stack is None and one.software in get_args(FrameworkName):
            say(
                f"           no framework is assumed: --framework {one.software} sets its defaults and its stack"
            )
    if compared.traced is not None:
        _show_causes(compared)
    if is_quiet():
        return
    if compared.traced is not None:
        _show_rows("part of the step", compared.parts, _PART_TITLES)
        _show_operators(compared.operators[:top])
        _show_collectives(compared.collectives)
    for line in (*compared.notes, *warning_lines(estimate.doubts)):
        say(f"note: {line}")


def _show_causes(compared: ComparedStep) -> None:
    if not compared.causes:
        say("\nno single cause takes more than 3 % of the step")
        return
    say("\ncauses of lost time, largest first (they may overlap)")
    rows = [(f"{one.excess_s * 1e3:,.1f} ms", one.line) for one in compared.causes]
    click.echo(text_table(("per step", "cause"), rows, indent="  "))


def _show_rows(title: str, rows: Sequence[Row], titles: dict[str, str]) -> None:
    shown = [
        (titles.get(row.name, row.name), _ms(row.measured_s), _ms(row.predicted_s), _change(row))
        for row in rows
    ]
    measured_s = sum(row.measured_s or 0.0 for row in rows)
    predicted_s = sum(row.predicted_s or 0.0 for row in rows)
    shown.append(("step", _ms(measured_s), _ms(predicted_s), f"{1e3 * (measured_s - predicted_s):+,.2f}"))
    click.echo(f"\n{text_table((title, 'measured ms', 'predicted ms', 'difference ms'), shown)}")


def _show_operators(rows: Sequence[Row]) -> None:
    click.echo()
    print_table(
        rows,
        ("operator", lambda row: row.name),
        ("pass", lambda row: row.pass_),
        ("measured ms", lambda row: _ms(row.measured_s)),
        ("predicted ms", lambda row: _ms(row.predicted_s)),
        ("interval", _interval),
        ("difference ms", _change),
        ("ratio", lambda row: "" if row.ratio is None else f"{row.ratio:.2f}"),
        ("", lambda row: "slow" if row.is_slow else ""),
    )


def _interval(row: Row) -> str:
    return "" if row.low_s is None or row.high_s is None else f"{_ms(row.low_s)} to {_ms(row.high_s)}"


def _show_collectives(rows: Sequence[Row]) -> None:
    if not rows:
        return
    click.echo()
    print_table(
        rows,
        ("collective", lambda row: row.name),
        ("exposed ms", lambda row: _ms(row.measured_s)),
        ("predicted ms", lambda row: _ms(row.predicted_s)),
        ("difference ms", _change),
        ("calls", lambda row: f"{row.launches:,.0f}"),
        ("predicted", lambda row: f"{row.calls:,}"),
        ("MiB", lambda row: f"{row.measured_bytes / _MIB:,.1f}"),
        ("predicted MiB", lambda row: f"{row.predicted_bytes / _MIB:,.1f}"),
    )


def _ms(value_s: float | None) -> str:
    return "" if value_s is None else f"{value_s * 1e3:,.2f}"


def _change(row: Row) -> str:
    return f"{row.excess_s * 1e3:+,.2f}"
