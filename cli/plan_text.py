"""A plan as text."""

import math
from collections.abc import Sequence

from kernelcast.cli.tables import text_table
from kernelcast.cli.terminal import facts, heading, title, warning
from kernelcast.plan.answer import Plan
from kernelcast.plan.run import CAUSES
from kernelcast.runtime.estimate.step_spread import StepSpread
from kernelcast.runtime.request.field_types import with_unit
from kernelcast.runtime.views.formatting import amount, counted, gibibytes, percent, seconds

_S_PER_DAY = 86_400.0


def render_plan(plan: Plan, *, is_brief: bool = False) -> str:
    """Headline and facts; unless `is_brief` also where the time goes, and what would help most."""
    found = plan.expected
    first = f"{days(found.total_s)} on the calendar, goodput {percent(found.goodput)}"
    lines = f"{heading(first)}\n\n{facts(_facts(plan))}"
    if is_brief:
        return lines
    rows = [("steps", days(found.work_s), percent(found.work_s / found.total_s))]
    rows += [
        (name, days(found.lost_s[name]), percent(found.lost_s[name] / found.total_s))
        for name in CAUSES
        if found.lost_s[name] > 0
    ]
    helps = [(name, days(saved * _S_PER_DAY)) for name, saved in plan.helps.items() if saved > 1e-4]
    sections = [
        lines,
        title("Where the time goes, on average", text_table(("cause", "time", "share"), rows, indent="  ")),
    ]
    if helps:
        sections.append(
            title(
                "What would help most: each halved alone", text_table(("halved", "saves"), helps, indent="  ")
            )
        )
    if plan.warnings:
        sections.append("\n".join(map(warning, plan.warnings)))
    return "\n\n".join(sections)


def render_plans(plans: Sequence[Plan]) -> str:
    """A row per plan."""
    with_cost = any(plan.cost is not None for plan in plans)
    rows = [
        (
            f"{plan.estimate.parallelism.world_size:,}",
            seconds(plan.estimate.step_time_s),
            *(f"{one:,.1f}" for one in plan.days),
            percent(plan.expected.goodput),
            f"{plan.expected.failures:,.1f}",
            f"{plan.gpu_hours:,.0f}",
            *((f"{plan.cost or 0:,.0f}",) if with_cost else ()),
            plan.estimate.parallelism.degrees,
        )
        for plan in plans
    ]
    heads = ("GPUs", "step", "days 50 %", "90 %", "95 %", "goodput", "failures", "GPU-hours")
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


def _facts(plan: Plan) -> list[tuple[str, str]]:
    run, restart, checkpoint, layout = plan.run, plan.restart, plan.checkpoint, plan.estimate.parallelism
    middle, late, later = (days(one * _S_PER_DAY) for one in plan.days)
    low, high = plan.goodput_interval
    tokens = run.steps * layout.samples_per_update * plan.estimate.model.sequence_length
    rows = [
        (
            "calendar",
            f"{middle} at 50 %, {late} at 90 %, {later} at 95 % of "
            f"{len(plan.draws.step):,} simulated runs; goodput {percent(low)} to {percent(high)} (90 %)",
        ),
        (
            "steps",
            f"{run.steps:,} ({with_unit(tokens)} tokens) of {step_text(plan.estimate.step_time_s, plan.spread)}; "
            f"{days(run.work_s)} alone",
        ),
        ("failures", _failures(plan)),
        (
            "checkpoint",
            f"every {counted(run.interval_steps, 'step')}, {seconds(run.interval_steps * run.step_s)} "
            f"({_interval(plan)}); {checkpoint.mode}: training waits {seconds(checkpoint.stall_s)}, "
            f"written in {seconds(checkpoint.storage_s)}; {gibibytes(checkpoint.total_bytes)}, "
            f"{gibibytes(checkpoint.device_bytes)} per device",
        ),
        (
            "restart",
            f"{seconds(restart.detection_s)} until a failure is detected, then {seconds(restart.total_s)}: "
            f"node {seconds(restart.replacement_s)}, start-up {seconds(restart.startup_s)}, "
            f"loading {seconds(restart.loading_s)}, first step {seconds(restart.first_steps_s)}",
        ),
        ("held", _held(plan)),
        ("layout", f"{layout.degrees}, {plan.estimate.model.name}, {counted(plan.nodes, 'node')}"),
    ]
    if not math.isinf(run.walltime_limit_s):
        rows.insert(
            5,
            ("jobs", f"of at most {seconds(run.walltime_limit_s)}, {seconds(run.queue_s)} in the queue each"),
        )
    return rows


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
