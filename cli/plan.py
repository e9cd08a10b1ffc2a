"""`kernelcast plan`: a whole training run on the calendar, as text and drawn; its failures are in plan_failures.py."""

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelcast.cli import option
from kernelcast.cli.fields import check_effect, chosen_bundle, field_options, given_fields, memory_options
from kernelcast.cli.lazy import DefaultGroup, Verb
from kernelcast.cli.tables import text_table
from kernelcast.cli.terminal import (
    Facts,
    Shown,
    facts,
    heading,
    is_quiet,
    print_next,
    title,
    typed_again,
    warning,
)
from kernelcast.plan.answer import Plan
from kernelcast.plan.failures import FailureRate
from kernelcast.plan.fields import PLAN
from kernelcast.plan.planning import plan
from kernelcast.runtime import Estimator, UsageError
from kernelcast.runtime.errors import needs_extra
from kernelcast.runtime.estimate.step_spread import StepSpread
from kernelcast.runtime.output_file import check_target, write_bytes
from kernelcast.runtime.request.field_types import Field, counts, whole, with_unit
from kernelcast.runtime.request.fields import MAX_SIZE, REQUEST
from kernelcast.runtime.request.models import find_model
from kernelcast.runtime.views.formatting import amount, counted, gibibytes, in_days, percent, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLANS_FORMAT = "kernelcast.run-plans/1"
_GPUS = Field(
    "gpus",
    counts(whole(1, MAX_SIZE), "numbers of devices, such as 1024 or 1024,2048"),
    "Number of devices; several, separated by commas, are compared. Layout options that are not given are searched.",
)


# fmt: off
VERBS: Mapping[str, Verb] = {
    "run": Verb("plan", "run", "", "Plan a run: the default command."),
    "fit-failures": Verb("plan_failures", "fit_failures", "store", "Fit how often nodes fail, from logs of jobs."),
}
# fmt: on


@click.group("plan", cls=DefaultGroup, verbs=VERBS, default="run")
def plan_() -> None:
    """Plan a whole training run: days on the calendar, failures, checkpoints, price and energy."""


@click.command("run")
@option.bundle
@option.model
@field_options(*REQUEST.values(), _GPUS)
@memory_options()
@option.no_calibration
@field_options(*PLAN.values())
@option.time(
    "--deadline",
    "deadline_s",
    "Find the fewest devices that finish within this time in 90 % of runs.",
    most="3650d",
)
@option.file("--db", "database", "Database with your failures (plan fit-failures) and steps (import mlperf).")
@option.file("--picture", "Draw calendar, fan chart and interval into a .png or .svg file.")
@option.json
def run(
    *,
    bundle: str | None,
    hardware: str | None,
    model_name: str,
    no_calibration: bool,
    deadline_s: float | None,
    database: Path | None,
    picture: Path | None,
    **fields: Any,
) -> Shown:
    """Plan a whole training run from the predicted step.

    Options of `kernelcast predict` describe model and layout; with --gpus or --deadline the layout is searched. `plan
    run` may be written `plan`.

    \b
    kernelcast plan run --hardware h100-sxm --model llama-3-8b --gpus 256 --global-batch 1024 --tokens 15T --price 2.5
    kernelcast plan --hardware h100-sxm --model llama-3-70b --gpus 1024,2048 --global-batch 2048 --tokens 15T
    kernelcast plan --hardware h100-sxm --model llama-3-8b --deadline 60d --global-batch 1024 --tokens 15T
    """
    path = chosen_bundle(bundle, hardware)
    if picture is not None and picture.suffix not in (".png", ".svg"):
        raise UsageError(f"--picture is {str(picture)!r}, expected a file that ends in .png or .svg")
    sizes = fields.pop("gpus") or (None,)
    if len(sizes) > 1 and (deadline_s or picture):
        raise UsageError("several --gpus are given with --deadline or --picture, expected one")
    given = given_fields(fields)
    model = find_model(model_name, sequence_length=given.pop("sequence_length", None)).require_length().model
    stack = given.pop("stack", None)
    estimator = Estimator.load(path, calibrated=not no_calibration, stack=stack)
    rate = spread = None
    if database is not None:
        rate, spread = _facts(database, estimator, sizes[0])
    plans = [
        plan(estimator, model, gpus=size, deadline_s=deadline_s, rate=rate, spread=spread, **given)
        for size in sizes
    ]
    check_effect(fields, plans[0].estimate.parallelism, is_searched=bool(sizes[0] or deadline_s))
    if picture is not None:
        draw_plan(plans[0], picture)
        click.echo(f"wrote {picture}", err=True)
    if len(plans) > 1:
        documents = [one.to_dict() for one in plans]
        return Shown({"format": PLANS_FORMAT, "plans": documents}, lambda: click.echo(render_plans(plans)))

    def show() -> None:
        click.echo(render_plan(plans[0]))
        if picture is None:
            print_next((typed_again("--picture", "plan.svg"), "draw calendar, fan chart and interval"))

    return Shown(plans[0].to_dict, show)


def _facts(
    database: Path, estimator: Estimator, gpus: int | None
) -> tuple[FailureRate | None, StepSpread | None]:
    """What a database says of the site's failures and steps."""
    with needs_extra("--db", "store"):
        from kernelcast.cli.plan_failures import stored_facts
    device = estimator.bundle.manifest.compute[0].device_name if estimator.bundle.manifest.compute else None
    return stored_facts(database, device, gpus or 8)


_S_PER_DAY = 86_400.0


def render_plan(plan: Plan) -> str:
    """Headline and facts; without --quiet also where the time goes, and what would help most."""
    found = plan.expected
    first = f"{days(found.total_s)} on the calendar, goodput {percent(found.goodput)}"
    lines = f"{heading(first)}\n\n{facts(_fact_rows(plan))}"
    if is_quiet():
        return lines
    times_s = {"steps": found.work_s, **found.lost_s}
    rows = [(name, days(one), percent(one / found.total_s)) for name, one in times_s.items() if one > 0]
    helps = [(name, days(saved * _S_PER_DAY)) for name, saved in plan.helps.items() if saved > 1e-4]
    sections = [
        lines,
        title("Where the time goes, on average", text_table(("cause", "time", "share"), rows, indent="  ")),
    ]
    if helps:
        saves = text_table(("halved", "saves"), helps, indent="  ")
        sections.append(title("What would help most: time saved by halving each cause alone", saves))
    if plan.warnings:
        sections.append("\n".join(map(warning, plan.warnings)))
    return "\n\n".join(sections)


def render_plans(plans: Sequence[Plan]) -> str:
    with_cost = any(plan.cost is not None for plan in plans)
    longest = max(plan.days[0] for plan in plans)
    unit = in_days(longest).split()[1]
    rows = [
        (
            f"{plan.estimate.parallelism.world_size:,}",
            seconds(plan.estimate.step_time_s),
            *(in_days(one, like=longest).split()[0] for one in plan.days),
            percent(plan.expected.goodput),
            f"{plan.expected.failures:,.1f}",
            f"{plan.gpu_hours:,.0f}",
            *((f"{plan.cost or 0:,.0f}",) if with_cost else ()),
            plan.estimate.parallelism.degrees,
        )
        for plan in plans
    ]
    heads = ("GPUs", "step", f"{unit} 50 %", "90 %", "95 %", "goodput", "failures", "GPU-hours")
    return text_table(
        (*heads, *(("cost",) if with_cost else ()), "layout"), rows, optional=("layout", "95 %")
    )


def days(time_s: float) -> str:
    """A time in days, or in a smaller unit below two."""
    return seconds(time_s) if time_s < 2 * _S_PER_DAY else f"{time_s / _S_PER_DAY:,.1f} days"


def step_text(step_s: float, spread: StepSpread) -> str:
    """Quantiles of single steps."""
    return (
        f"p50 {seconds(step_s)}, p90 {seconds(step_s * spread.p90, like=step_s)}, "
        f"p99 {seconds(step_s * spread.p99, like=step_s)}"
    )


def _fact_rows(plan: Plan) -> Facts:
    run, restart, checkpoint, layout = plan.run, plan.restart, plan.checkpoint, plan.estimate.parallelism
    middle, late, later = (days(one * _S_PER_DAY) for one in plan.days)
    low, high = plan.goodput_interval
    jobs = None
    if not math.isinf(run.walltime_limit_s):
        jobs = f"of at most {seconds(run.walltime_limit_s)}, {seconds(run.queue_s)} in the queue each"
    return {
        "calendar": f"{middle} at 50 %, {late} at 90 %, {later} at 95 % of "
        f"{len(plan.draws.step):,} simulated runs; goodput {percent(low)} to {percent(high)} (90 %)",
        "steps": f"{run.steps:,} ({with_unit(plan.tokens)} tokens) of "
        f"{step_text(plan.estimate.step_time_s, plan.spread)}; {days(run.work_s)} alone",
        "failures": _failures(plan),
        "checkpoint": f"every {counted(run.interval_steps, 'step')}, {seconds(run.interval_steps * run.step_s)} "
        f"({_interval(plan)}); {checkpoint.mode}: training waits {seconds(checkpoint.stall_s)}, "
        f"written in {seconds(checkpoint.storage_s)}; {gibibytes(checkpoint.total_bytes)}, "
        f"{gibibytes(checkpoint.device_bytes)} per device",
        "restart": f"{seconds(restart.detection_s)} until a failure is detected, then {seconds(restart.total_s)}: "
        f"node {seconds(restart.replacement_s)}, start-up {seconds(restart.startup_s)}, "
        f"loading {seconds(restart.loading_s)}, first step {seconds(restart.first_steps_s)}",
        "jobs": jobs,
        "held": _held(plan),
        "layout": f"{layout.degrees}, {plan.estimate.model.name}, {counted(plan.nodes, 'node')}",
    }


def _failures(plan: Plan) -> str:
    run, rate = plan.run, plan.rate
    if not run.failures_per_s:
        return f"none ({rate.origin})"
    spread = ""
    if math.isfinite(rate.events):
        low, high = rate.interval()
        spread = f" (90 %: {low:.2g} to {high:.2g})"
    short = f"; {percent(run.short_probability)} find no spare node" if plan.run.short_probability else ""
    return (
        f"{rate.mean:.3g} per 1,000 node-days{spread}, one in {seconds(1 / run.failures_per_s)}, "
        f"{plan.expected.failures:,.1f} in the run{short}; {rate.origin}"
    )


def _interval(plan: Plan) -> str:
    daly = "" if plan.daly_steps is None else f"Daly: {max(0.0, plan.daly_steps):,.1f}"
    return f"the best; {daly}" if plan.is_best_interval and daly else daly or "at the end"


def _held(plan: Plan) -> str:
    spares = f" with {counted(plan.spares, 'spare node')}" if plan.spares else ""
    cost = "" if plan.cost is None else f", cost {plan.cost:,.0f}"
    energy = ""
    if plan.energy_kwh is not None:
        kwh, is_limit = plan.energy_kwh
        energy = f", {'at most ' if is_limit else ''}{amount(kwh * 1000, 'Wh')}{' (power limit)' if is_limit else ''}"
    return f"{plan.gpus:,} GPUs{spares}, {plan.gpu_hours:,.0f} GPU-hours{cost}{energy}"


_BLUE = "#2a78b5"
_COLOURS = (_BLUE, "#b23b3b", "#e08e2b", "#c9b32e", "#5b8f3a", "#7b5aa6", "#8a8a8a", "#444444")
_LEAST_SHARE = 0.001


def draw_plan(plan: Plan, path: Path) -> None:
    """Draw into a .png or .svg file; UsageError where that cannot be written, or without matplotlib."""
    check_target(path, "--picture")
    with needs_extra("--picture", "plot"):
        import matplotlib as mpl
        from matplotlib.figure import Figure
    form, layout, content = path.suffix[1:], plan.estimate.parallelism, BytesIO()
    # Dates and random names would change the file with every run.
    with mpl.rc_context({"svg.hashsalt": "kernelcast", "font.size": 9}):
        figure = Figure(figsize=(8, 7.5), layout="constrained")
        calendar, fan, interval = figure.subplots(3, 1, height_ratios=(1, 3, 3))
        _calendar(calendar, plan)
        _fan(fan, plan)
        _interval_curve(interval, plan)
        figure.suptitle(f"{plan.estimate.model.name} on {layout.world_size:,} GPUs, {layout.degrees}")
        figure.savefig(content, format=form, dpi=150, metadata={"Date": None} if form == "svg" else None)
    write_bytes(path, content.getvalue(), "--picture")


def _calendar(axes: "Axes", plan: Plan) -> None:
    """One bar: the mean days by cause."""
    found, begin = plan.expected, 0.0
    times_s = {"steps": found.work_s, **found.lost_s}
    for (name, time_s), colour in zip(times_s.items(), _COLOURS, strict=True):
        if time_s >= _LEAST_SHARE * found.total_s:
            days = time_s / _S_PER_DAY
            axes.barh(0, days, left=begin, color=colour, label=f"{name} {days:,.1f}")
            begin += days
    axes.set(yticks=[], xlim=(0, begin), xlabel="days on the calendar, on average")
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)


def _fan(axes: "Axes", plan: Plan) -> None:
    """Tokens over days: the median, and where half and 90 % of simulated runs are."""
    share, low, quarter, middle, three_quarters, high = zip(*plan.fan, strict=True)
    trained = [plan.tokens / 1e12 * one for one in share]
    axes.fill_betweenx(trained, low, high, color=_BLUE, alpha=0.2, linewidth=0, label="90 % of runs")
    axes.fill_betweenx(trained, quarter, three_quarters, color=_BLUE, alpha=0.35, linewidth=0, label="50 %")
    axes.plot(middle, trained, color=_BLUE, label="median")
    axes.set(xlabel="days", ylabel="tokens, 10¹²", xlim=(0, None), ylim=(0, None))
    axes.legend(frameon=False, loc="upper left")


def _interval_curve(axes: "Axes", plan: Plan) -> None:
    minutes = plan.run.step_s / 60
    axes.plot(
        [steps * minutes for steps, _ in plan.intervals], [days for _, days in plan.intervals], color=_BLUE
    )
    now = plan.run.interval_steps * minutes
    axes.axvline(now, color=_COLOURS[1], linestyle="--", label=f"every {plan.run.interval_steps:,} steps")
    axes.set(xscale="log", xlabel="minutes between checkpoints", ylabel="days on average")
    axes.legend(frameon=False)
