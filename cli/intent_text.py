"""What was searched, counted and compared, as readable text."""

from kernelcast.cli.estimate_text import render
from kernelcast.cli.sizes import in_days
from kernelcast.cli.tables import seconds_precisely, text_table
from kernelcast.runtime.estimate.device_memory import Memory
from kernelcast.runtime.estimate.training import Training
from kernelcast.runtime.intent.answer import IntentAnswer
from kernelcast.runtime.intent.best import Best
from kernelcast.runtime.intent.comparison import Compared, Comparison
from kernelcast.runtime.intent.fewest_devices import Fewest
from kernelcast.runtime.intent.largest import Largest
from kernelcast.runtime.intent.network import RateSensitivity
from kernelcast.runtime.request.kinds import with_unit
from kernelcast.runtime.search.result import layout_text
from kernelcast.runtime.views.formatting import counted, gibibytes, percent, rate, three_digits


def render_answer(found: IntentAnswer) -> str:
    """An estimate as `render` shows it, with how it was come by."""
    facts = []
    if found.sensitivity is not None:
        facts.append(f"network   {_sensitivity(found.sensitivity)}")
    if found.best is not None:
        facts.append(f"memory    {_memory(found.estimate.memory)}")
    if found.training is not None:
        facts.append(f"training  {_training(found.training)}")
    if found.fewest is not None:
        facts.append(f"devices   {_fewest(found.fewest)}")
    if found.largest is not None:
        facts.append(f"largest   {_largest(found.largest)}")
    sections = []
    if found.best is not None:
        counts = found.best.counts
        facts.append(
            f"searched  {counts.layouts:,} layouts, {counts.out_of_memory:,} out of memory, "
            f"{found.best.seconds:.1f} s"
        )
        if found.best.runners_up:
            sections.append("Runners-up of another kind\n" + _runners_up(found.best))
    return render(found.estimate, facts=facts, sections_after=sections)


def _sensitivity(found: RateSensitivity) -> str:
    return (
        f"{found.gbit_per_s_per_device:g} Gbit/s per device between nodes; "
        f"step {_change(found.at_half)} at half, {_change(found.at_double)} at double that rate"
    )


def _change(fraction: float) -> str:
    size = percent(abs(fraction))
    sign = "+" if fraction > 0 else "−"
    return size if size == percent(0) else sign + size


def _memory(memory: Memory) -> str:
    of = "" if memory.gpu_memory_bytes is None else f" of {gibibytes(memory.gpu_memory_bytes)}"
    if of and memory.reserved_bytes:
        of += f" ({gibibytes(memory.reserved_bytes)} reserved)"
    return f"{gibibytes(memory.largest_bytes)}{of} on the fullest device"


def _training(run: Training) -> str:
    interval = run.days_interval
    between = "" if interval is None else f" (90 %: {in_days(interval[0])} to {in_days(interval[1])})"
    cost = "" if run.cost is None else f", cost {_cost(run.cost)}"
    energy = "" if run.energy_kwh is None else f", {run.energy_kwh:,.0f} kWh"
    return (
        f"{with_unit(run.tokens)} tokens in {in_days(run.days)} days{between}, "
        f"{_amount(run.gpu_hours)} GPU-hours{cost}{energy}"
    )


def _fewest(found: Fewest) -> str:
    late = found.by_95th_percentile
    percentile = "none" if late is None else f"{late.parallelism.world_size:,}"
    other = "" if late in (None, found.by_median) else f" ({layout_text(late.parallelism)})" if late else ""
    return (
        f"{found.by_median.parallelism.world_size:,} are the fewest by the median, {percentile} by the 95th percentile"
        f"{other}; {len(found.evaluated)} sizes evaluated"
    )


def _largest(found: Largest) -> str:
    unit = "sample" if found.field == "global_batch" else "token"
    name = found.field.replace("_", " ")
    more = ""
    if found.field == "global_batch":
        [micro_batches] = found.micro_batches
        more = (
            f", with {counted(micro_batches, 'micro-batch')} per update "
            "(--micro-batches: more of them take no more memory)"
        )
    return f"{name} {found.value:,} is the largest that fits, in steps of {counted(found.step, unit)}{more}"


def _runners_up(best: Best) -> str:
    rows = [
        [
            seconds_precisely(one.estimate.step_time_s),
            f"+{percent(one.slower)}",
            gibibytes(one.estimate.memory.largest_bytes),
            ", ".join(one.differs_in),
        ]
        for one in best.runners_up
    ]
    return text_table(("step", "slower", "memory", "what differs"), rows, indent="  ")


def render_comparison(found: Comparison) -> str:
    """A table with a row per hardware, best first."""
    rows = [_row(one) for one in found.compared]
    lines = [text_table(_HEADERS, rows)]
    lines += [
        f"warning: {one.hardware}: {percent(one.best.estimate.doubtful_share)} of the operators' time is doubtful "
        "(predict with this hardware alone says why)"
        for one in found.compared
        if one.best is not None and one.best.estimate.doubtful_share > 0
    ]
    lines += [f"warning: {one.hardware}: {one.problem}" for one in found.compared if one.best is None]
    return f"best by {found.rank_by}: {found.compared[0].hardware}\n\n" + "\n".join(
        [lines[0], "", *lines[1:]]
    )


_HEADERS = (
    "hardware", "step", "90 % interval", "tokens/s", "MFU", "memory", "days", "GPU-hours", "cost", "energy", "layout",
)  # fmt: skip


def _row(one: Compared) -> list[str]:
    if one.best is None:
        return [one.hardware, *["–"] * (len(_HEADERS) - 2), "none"]
    estimate, run = one.best.estimate, one.training
    interval = estimate.interval_s
    return [
        one.hardware,
        seconds_precisely(estimate.step_time_s),
        "–" if interval is None else f"{seconds_precisely(interval[0])} to {seconds_precisely(interval[1])}",
        rate(estimate.tokens_per_s),
        percent(estimate.mfu),
        gibibytes(estimate.memory.largest_bytes),
        "–" if run is None else in_days(run.days),
        "–" if run is None else _amount(run.gpu_hours),
        "–" if run is None or run.cost is None else _cost(run.cost),
        "not known" if run is None or run.energy_kwh is None else f"{run.energy_kwh:,.0f} kWh",
        layout_text(estimate.parallelism),
    ]


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else three_digits(value)


def _cost(cost: float) -> str:
    return f"{cost:,.2f}" if cost < 1000 else f"{cost:,.0f}"
