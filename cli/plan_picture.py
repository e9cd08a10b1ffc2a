"""Pictures of a plan, by matplotlib: where the days go, when tokens are trained, and the interval of checkpoints."""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from kernelcast.plan.answer import Plan
from kernelcast.plan.run import CAUSES
from kernelcast.runtime.errors import needs_extra
from kernelcast.runtime.output_file import check_target, write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_S_PER_DAY = 86_400.0
_BLUE = "#2a78b5"
_COLOURS = (_BLUE, "#b23b3b", "#e08e2b", "#c9b32e", "#5b8f3a", "#7b5aa6", "#8a8a8a", "#444444")
_LEAST_SHARE = 0.001


def draw_plan(plan: Plan, path: Path) -> None:
    """Draw into a .png or .svg file.

    Raises:
        UsageError: matplotlib is not installed, or the file cannot be written.
    """
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
        _interval(interval, plan)
        figure.suptitle(f"{plan.estimate.model.name} on {layout.world_size:,} GPUs, {layout.degrees}")
        figure.savefig(content, format=form, dpi=150, metadata={"Date": None} if form == "svg" else None)
    write_bytes(path, content.getvalue(), "--picture")


def _calendar(axes: "Axes", plan: Plan) -> None:
    """One bar: the mean days by cause."""
    found, begin = plan.expected, 0.0
    parts = [("steps", found.work_s), *((name, found.lost_s[name]) for name in CAUSES)]
    for (name, time_s), colour in zip(parts, _COLOURS, strict=True):
        if time_s >= _LEAST_SHARE * found.total_s:
            days = time_s / _S_PER_DAY
            axes.barh(0, days, left=begin, color=colour, label=f"{name} {days:,.1f}")
            begin += days
    axes.set(yticks=[], xlim=(0, begin), xlabel="days on the calendar, on average")
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)


def _fan(axes: "Axes", plan: Plan) -> None:
    """Tokens over days: the median, and where half and 90 % of simulated runs are."""
    layout = plan.estimate.parallelism
    tokens = plan.run.steps * layout.samples_per_update * plan.estimate.model.sequence_length / 1e12
    share, low, quarter, middle, three_quarters, high = zip(*plan.fan, strict=True)
    trained = [tokens * one for one in share]
    axes.fill_betweenx(trained, low, high, color=_BLUE, alpha=0.2, linewidth=0, label="90 % of runs")
    axes.fill_betweenx(trained, quarter, three_quarters, color=_BLUE, alpha=0.35, linewidth=0, label="50 %")
    axes.plot(middle, trained, color=_BLUE, label="median")
    axes.set(xlabel="days", ylabel="tokens, 10¹²", xlim=(0, None), ylim=(0, None))
    axes.legend(frameon=False, loc="upper left")


def _interval(axes: "Axes", plan: Plan) -> None:
    """Days over the interval between checkpoints, with the plan's."""
    minutes = plan.run.step_s / 60
    axes.plot(
        [steps * minutes for steps, _ in plan.intervals], [days for _, days in plan.intervals], color=_BLUE
    )
    now = plan.run.interval_steps * minutes
    axes.axvline(now, color=_COLOURS[1], linestyle="--", label=f"every {plan.run.interval_steps:,} steps")
    axes.set(xscale="log", xlabel="minutes between checkpoints", ylabel="days on average")
    axes.legend(frameon=False)
