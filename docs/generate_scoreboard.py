"""Write docs/scoreboard.md and its pictures from docs/validation/steps.json, which `make validate-steps` keeps.

python docs/generate_scoreboard.py
"""

import json
import math
from pathlib import Path
from statistics import mean, median
from typing import Any

FOLDER = Path(__file__).resolve().parent
STEPS, TEXT, PAGE = (
    FOLDER / "validation" / "steps.json",
    FOLDER / "validation" / "scoreboard.md",
    FOLDER / "scoreboard.md",
)
PICTURE = FOLDER / "scoreboard.png"
LEVEL = 0.9
FEWEST = 20
"""Of sources with fewer steps, coverage is a count."""

Step = dict[str, Any]


def sources() -> dict[str, list[Step]]:
    """Predicted steps by source, in the order of the files."""
    result = json.loads(STEPS.read_text(encoding="utf-8"))["result"]
    return {
        f"{one['site']}, {one['asked']} over {one['fabric']}": [
            {**step, "devices": step["pp"] * step["tp"] * step["dp"]}
            for step in one["steps"]
            if step["predicted_s"] is not None
        ]
        for one in result["files"]
    }


def page(text: str, found: dict[str, list[Step]]) -> str:
    """The page with its tables."""
    for name, lines in (
        ("sources", _sources(found)),
        ("pooled", _pooled(found)),
        ("sizes", _sizes(found)),
        ("memory", _memory(found)),
    ):
        text = text.replace(f"<!-- {name} -->\n", "\n".join(lines) + "\n")
    return text


def interval_score(step: Step, low_s: float, high_s: float) -> float:
    """Interval score of Gneiting and Raftery (2007, section 6.2) on log(time): the smaller the better."""
    low, high, measured = math.log(low_s), math.log(high_s), math.log(step["measured_s"])
    beyond = max(0.0, low - measured, measured - high)
    return high - low + 2 / (1 - LEVEL) * beyond


def _sources(found: dict[str, list[Step]]) -> list[str]:
    lines = [
        "| source | steps | mean absolute error | median | bias | inside the 90 % interval | half-width "
        "| its own predictor |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, steps in found.items():
        errors = [step["error"] for step in steps]
        inside = sum(step["is_inside"] for step in steps)
        share = f"{inside} of {len(steps)}" + ("" if len(steps) < FEWEST else f", {inside / len(steps):.0%}")
        own = [abs(step["published_error"]) for step in steps if step["published_error"] is not None]
        lines.append(
            f"| {name} | {len(steps)} | {_percent(mean(map(abs, errors)))} | {_percent(median(map(abs, errors)))} | "
            f"{mean(errors):+.1%} | {share} | {_percent(median(map(_half_width, steps)))} | "
            f"{_percent(mean(own)) if own else '–'} |"
        )
    return lines


def _memory(found: dict[str, list[Step]]) -> list[str]:
    """Steps that are predicted to fit, the tightest of them, and errors where memory was measured."""
    lines = [
        "| source | predicted to fit | least left on a device | memory measured | mean absolute error | largest |",
        "|---|---|---|---|---|---|",
    ]
    for name, steps in found.items():
        fit = sum(step["fits"] is True for step in steps)
        left = min((step["margin_gib"] for step in steps if step["margin_gib"] is not None), default=None)
        errors = [error for step in steps for error in step["memory_errors"]]
        lines.append(
            f"| {name} | {fit} of {len(steps)} | {'–' if left is None else f'{left:.1f} GiB'} | "
            f"{f'{len(errors)} devices' if errors else '–'} | "
            f"{f'{mean(map(abs, errors)):.2%}'.replace('%', ' %') if errors else '–'} | "
            f"{f'{max(errors, key=abs):+.2%}'.replace('%', ' %') if errors else '–'} |"
        )
    return lines


def _pooled(found: dict[str, list[Step]]) -> list[str]:
    """Every source weighing the same: coverage, half-width, and the score beside that of the best constant width."""
    coverage = mean(mean(step["is_inside"] for step in steps) for steps in found.values())
    width = mean(median(map(_half_width, steps)) for steps in found.values())
    own = mean(mean(interval_score(step, *step["interval_s"]) for step in steps) for steps in found.values())
    constant, best = min(
        (
            mean(
                mean(
                    interval_score(step, step["predicted_s"] / (1 + share), step["predicted_s"] * (1 + share))
                    for step in steps
                )
                for steps in found.values()
            ),
            share,
        )
        for share in (0.05 * number for number in range(1, 40))
    )
    return [
        f"Pooled, every source weighing the same: {coverage:.0%} of the steps are inside their 90 % interval, whose "
        f"median half-width is {width:.0%}. The interval score is {own:.2f}; that of one constant width, the best of "
        f"all (a factor of {1 + best:.2f} up and down, chosen on these steps), is {constant:.2f}.",
    ]


def _sizes(found: dict[str, list[Step]]) -> list[str]:
    """Errors by number of devices and by sequence length."""
    lines = ["| steps on | steps | mean absolute error | bias |", "|---|---|---|---|"]
    everything = [step for steps in found.values() for step in steps]
    for what, unit, bounds in (
        ("devices", "devices", (1, 8, 16, 64, 1 << 20)),
        ("sequence_length", "tokens", (1, 2048, 4096, 8192, 1 << 20)),
    ):
        low = 0
        for high in bounds[1:]:
            own = [step["error"] for step in everything if low < step[what] <= high]
            if own:
                name = (
                    f"more than {low:,} {unit}" if high == bounds[-1] else f"{low + 1:,} to {high:,} {unit}"
                )
                lines.append(f"| {name} | {len(own)} | {_percent(mean(map(abs, own)))} | {mean(own):+.1%} |")
            low = high
    return lines


def picture(found: dict[str, list[Step]]) -> None:
    """Predicted against measured, and errors by devices and by sequence length."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (times, devices, lengths) = plt.subplots(1, 3, figsize=(14, 4.6), dpi=100)
    for number, (name, steps) in enumerate(found.items()):
        color = f"C{number}"
        measured = [step["measured_s"] for step in steps]
        times.plot(
            measured, [step["predicted_s"] for step in steps], "o", color=color, markersize=4, label=name
        )
        for axes, what in ((devices, "devices"), (lengths, "sequence_length")):
            axes.plot(
                [step[what] for step in steps],
                [100 * step["error"] for step in steps],
                "o",
                color=color,
                markersize=4,
            )
    ends = [
        min(s["measured_s"] for steps in found.values() for s in steps),
        max(s["measured_s"] for steps in found.values() for s in steps),
    ]
    times.plot(ends, ends, color="grey", linewidth=0.8)
    times.set(xscale="log", yscale="log", xlabel="measured step, s", ylabel="predicted step, s")
    times.legend(fontsize=7)
    for axes, label in ((devices, "devices"), (lengths, "tokens of a sequence")):
        axes.axhline(0, color="grey", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set(xlabel=label, ylabel="predicted / measured − 1, %")
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(PICTURE)


def _half_width(step: Step) -> float:
    low_s, high_s = step["interval_s"]
    return float((high_s - low_s) / 2 / step["predicted_s"])


def _percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")


if __name__ == "__main__":
    known = sources()
    PAGE.write_text(page(TEXT.read_text(encoding="utf-8"), known), encoding="utf-8")
    picture(known)
