"""Answers of open requests as text: searched layouts, days of training, compared hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelcast.cli.estimate_text import render
from kernelcast.cli.tables import text_table
from kernelcast.cli.terminal import Facts, facts, heading, is_quiet, title, warning
from kernelcast.runtime.frameworks.software import framework_named
from kernelcast.runtime.intent.answer import IntentAnswer, RateSensitivity
from kernelcast.runtime.request.field_types import with_unit
from kernelcast.runtime.views.formatting import (
    between,
    counted,
    gibibytes,
    in_days,
    percent,
    rate,
    seconds,
    three_digits,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kernelcast.runtime.estimate.training import Training
    from kernelcast.runtime.intent.best import Best
    from kernelcast.runtime.intent.comparison import Compared, Comparison
    from kernelcast.runtime.intent.fewest_devices import Fewest
    from kernelcast.runtime.intent.largest import Largest

_CERTAIN = 0.9
"""Probability from which one hardware is called the best."""


def render_answer(found: IntentAnswer, *, lists_warnings: bool) -> str:
    """An estimate as `render` shows it, with the results of the search that led to it."""
    at_front: Facts = {"software": _software(found)}
    further: Facts = {}
    sections = []
    if (run := found.training) is not None:
        at_front["training"] = training_text(run, in_samples=found.counts_samples) + _run_quantiles(found)
        if found.estimate.parallelism.objective == "dpo_precomputed":
            at_front["reference"] = (
                "its pass over the data before training is not included (compare with --objective dpo)"
            )
    if found.fewest is not None:
        at_front["devices"] = _fewest(found.fewest)
    if found.largest is not None:
        at_front["largest"] = _largest(found.largest)
    if found.sensitivity is not None:
        further["network"] = _sensitivity(found.sensitivity)
    if found.best is not None:
        counts = found.best.counts
        looked = f"{counts.layouts:,} layouts, {counts.out_of_memory:,} out of memory"
        further["searched"] = f"{looked}, {found.best.seconds:.1f} s"
        if found.best.runners_up:
            sections.append(
                title("Runners-up with other degrees, schedule or recomputation", _runners_up(found.best))
            )
    if found.best is None and found.estimate.memory.fits is False:
        from kernelcast.cli.explain import render_changes

        sections.append(render_changes(found.changes, found.estimate))
    asked = []
    if found.faster is not None:
        from kernelcast.cli.explain import render_changes

        asked.append(render_changes(found.faster, found.estimate, of="What would make it faster"))
    return render(
        found.estimate,
        at_front=at_front,
        further=further,
        sections_after=sections,
        sections_asked=asked,
        lists_warnings=lists_warnings,
    )


def _software(found: IntentAnswer) -> str | None:
    """The training framework assumed, or what each makes of the same step."""
    if found.framework is not None:
        return f"{framework_named(found.framework).title}: its defaults for fields that are not given"
    if not found.by_framework:
        return None
    like = found.estimate.step_time_s
    times = (f"{name} {seconds(step_s, like=like)}" for name, step_s in found.by_framework.items())
    return f"none assumed (--framework); with stacks of {', '.join(times)}"


def _sensitivity(found: RateSensitivity) -> str:
    return (
        f"{found.gbit_per_s_per_device:g} Gbit/s per device between nodes; "
        f"step {_change(found.at_half)} at half, {_change(found.at_double)} at double that rate"
    )


def _change(fraction: float) -> str:
    size = percent(abs(fraction))
    sign = "+" if fraction > 0 else "−"
    return size if size == percent(0) else sign + size


def training_text(run: Training, *, in_samples: bool) -> str:
    """How long training takes, with its interval, GPU-hours, cost and energy."""
    interval = run.days_interval
    spread = "" if interval is None else f" (90 %: {' to '.join(_numbers(interval, like=run.days))})"
    samples = f", {run.steps:,} steps of {rate(run.samples_per_s)} samples/s" if in_samples else ""
    cost = "" if run.cost is None else f", cost {_cost(run.cost)}"
    energy = "" if run.energy_kwh is None else f", {run.energy_kwh:,.0f} kWh"
    return (
        f"{with_unit(run.tokens)} tokens{samples} in {in_days(run.days)}{spread}, "
        f"{_amount(run.gpu_hours)} GPU-hours{cost}{energy}"
    )


def _run_quantiles(found: IntentAnswer) -> str:
    if (run := found.run_days) is None or found.training is None:
        return ""
    numbers, unit = _numbers(run.values(), like=found.training.days), in_days(found.training.days).split()[1]
    shown = ", ".join(f"{name} {number}" for name, number in zip(run, numbers, strict=True))
    return f"; from the spread of steps {shown} {unit}"


def _numbers(days: Iterable[float], *, like: float) -> list[str]:
    """Times in the unit of `like`, without it."""
    return [in_days(one, like=like).split()[0] for one in days]


def _fewest(found: Fewest) -> str:
    from kernelcast.runtime.search.result import layout_text

    late = found.by_95th_percentile
    percentile = "none" if late is None else f"{late.parallelism.world_size:,}"
    other = "" if late in (None, found.by_median) else f" ({layout_text(late.parallelism)})" if late else ""
    return (
        f"fewest: {found.by_median.parallelism.world_size:,} by the median step, {percentile} by the 95th percentile"
        f"{other}; {counted(len(found.evaluated), 'size')} evaluated"
    )


def _largest(found: Largest) -> str:
    unit = "sample" if found.field == "global_batch" else "token"
    name = found.field.replace("_", " ")
    more = ""
    if found.field == "global_batch":
        [micro_batches] = found.micro_batches
        more = (
            f", with {counted(micro_batches, 'micro-batch')} per update "
            "(more micro-batches need no more memory: --micro-batches)"
        )
    return f"{name} {found.value:,} is the largest that fits, in steps of {counted(found.step, unit)}{more}"


def _runners_up(best: Best) -> str:
    rows = [
        [
            seconds(one.estimate.step_time_s, like=best.estimate.step_time_s),
            f"+{percent(one.slower)}",
            gibibytes(one.estimate.memory.largest_bytes),
            ", ".join(one.differs_in),
        ]
        for one in best.runners_up
    ]
    return text_table(("step", "slower", "memory", "differences"), rows, indent="  ")


def render_comparison(found: Comparison) -> str:
    """A table with a row per hardware, best first, and the layout of each."""
    from kernelcast.runtime.search.result import layout_text

    first = found.compared[0].best
    like = None if first is None else first.estimate.step_time_s
    chances = found.chances
    cells = [
        _cells(one, like) | ({"P(best)": f"{chances[one.hardware]:.2f}"} if one.hardware in chances else {})
        for one in found.compared
    ]
    heads = [head for head in max(cells, key=len) if any(row.get(head) for row in cells)]
    rows = [[row.get(head) or "–" for head in heads] for row in cells]
    sections = [
        heading(_leader(found, chances)),
        text_table(heads, rows, optional=("tokens/s", "MFU", "GPU-hours")),
        facts(
            {
                one.hardware: layout_text(one.best.estimate.parallelism)
                for one in found.compared
                if one.best is not None
            }
        ),
    ]
    lines = []
    doubtful = [
        f"{one.hardware} {percent(one.best.estimate.doubtful_share)}"
        for one in found.compared
        if one.best is not None and one.best.estimate.doubtful_share > 0 and not is_quiet()
    ]
    if doubtful:
        lines.append(
            f"doubtful share of the operators' time: {', '.join(doubtful)} (predict one hardware for the reasons)"
        )
    lines += [f"{one.hardware}: {one.problem}" for one in found.compared if one.best is None]
    if lines:
        sections.append("\n".join(map(warning, lines)))
    return "\n\n".join(sections)


def _leader(found: Comparison, chances: Mapping[str, float]) -> str:
    """Which hardware is the best, or which may be: none has nine chances in ten."""
    by, first = "step time" if found.rank_by == "time" else found.rank_by, found.compared[0].hardware
    if len(chances) < 2 or max(chances.values()) >= _CERTAIN:
        return f"best by {by}: {first}"
    near = [name for name, chance in chances.items() if chance >= 1 - _CERTAIN]
    return f"no clear best by {by}: {' or '.join(near)}"


def _cells(one: Compared, like: float | None) -> dict[str, str]:
    """Cells of a hardware's row by column; only its name if no layout is known. Times in the unit of the best."""
    if one.best is None:
        return {"hardware": one.hardware}
    estimate, run = one.best.estimate, one.training
    cells = {
        "hardware": one.hardware,
        "step": seconds(estimate.step_time_s, like=like),
        "90 % interval": "" if estimate.interval_s is None else between(*estimate.interval_s, like=like),
        "grade": "" if estimate.grade is None else estimate.grade.grade,
        "tokens/s": rate(estimate.tokens_per_s),
        "MFU": "" if estimate.mfu is None else percent(estimate.mfu),
        "memory": gibibytes(estimate.memory.largest_bytes),
    }
    if run is not None:
        cells |= {
            "training": in_days(run.days),
            "GPU-hours": _amount(run.gpu_hours),
            "cost": "" if run.cost is None else _cost(run.cost),
            "energy": "" if run.energy_kwh is None else f"{run.energy_kwh:,.0f} kWh",
        }
    return cells


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else three_digits(value)


def _cost(cost: float) -> str:
    return f"{cost:,.2f}" if cost < 1000 else f"{cost:,.0f}"
