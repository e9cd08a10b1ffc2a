"""The table and the picture of docs/few-points.md, A new device from a few points: `make validate-prior`.

python docs/generate_prior.py [FILE]    # FILE: what `kernelcast validate prior --json` printed, kept in docs/prior.json
"""

import json
import sys
from pathlib import Path
from typing import Any

from kernelcast.validate.markdown import fill

DOCS = Path(__file__).resolve().parent
RECORD = DOCS / "prior.json"
WAYS = {
    "telling": ("chosen", "#1f6fb4", "s"),
    "random": ("at random", "#7fb2d9", "o"),
    "without prior": ("at random, without a prior", "#888888", "^"),
}
"""What the page calls them; colour and marker."""
SHOWN = (1, 5, 10, 20, 40)


def percent(value: float) -> str:
    """With one decimal."""
    return f"{100 * value:.1f} %"


def table_text(document: dict[str, Any]) -> str:
    """The table of docs/few-points.md."""
    uncorrected = document["uncorrected"]
    operators = len(uncorrected["operators"])
    roles = sum(len(one["roles"]) for one in uncorrected["operators"])
    lines = [
        f"{document['prior']} → {document['target']}, {operators} operators and directions ({roles} with their roles), "
        f"{document['draws']} draws; left out: {', '.join(document['left_out'])}. Median / mean of the operators' mean "
        "absolute errors on workloads held out; in brackets of their roles, which share an operator's points.",
        "",
        "| points of each operator | "
        + " | ".join(name for name, _, _ in WAYS.values())
        + " | device time |",
        "|---|" + "---|" * (len(WAYS) + 1),
        f"| 0 (scaled by the peaks) | {_cell(uncorrected)} | | | 0 |",
    ]
    for points in SHOWN:
        own = {one["way"]: one for one in document["found"] if one["points"] == points}
        cells = " | ".join(_cell(own[way]) for way in WAYS)
        lines.append(f"| {points} | {cells} | {60 * own['telling']['minutes']:.0f} s |")
    return "\n".join(lines)


def _cell(one: dict[str, Any]) -> str:
    return (
        f"{percent(one['median_error'])} / {percent(one['mean_error'])} "
        f"({percent(one['median_role_error'])} / {percent(one['mean_role_error'])})"
    )


def draw(document: dict[str, Any]) -> None:
    """docs/prior.png: mean and median error against the number of points."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9, 3.8), constrained_layout=True, sharey=True)
    for panel, name, title in zip(
        panels, ("median_error", "mean_error"), ("median of the operators", "mean"), strict=True
    ):
        for way, (label, colour, marker) in WAYS.items():
            own = [one for one in document["found"] if one["way"] == way]
            panel.plot(
                [one["points"] for one in own],
                [100 * one[name] for one in own],
                marker=marker,
                color=colour,
                label=label,
                ms=5,
            )
        alone = 100 * document["uncorrected"][name]
        panel.axhline(alone, color="#c05a2a", lw=1, ls=":")
        panel.set_xscale("log")
        panel.set_yscale("log")
        points = sorted({one["points"] for one in document["found"]})
        panel.set_xticks(points, [str(one) for one in points])
        low, high = panel.get_ylim()
        ticks = [tick for tick in (2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500) if low <= tick <= high]
        panel.set_yticks(ticks, [f"{tick} %" for tick in ticks])
        panel.minorticks_off()
        panel.set_title(title, fontsize=10)
        panel.grid(alpha=0.25)
        panel.text(
            points[-1], 1.04 * alone, f"prior alone, scaled by peaks: {alone:.0f} %", ha="right", fontsize=8
        )
    panels[0].set_ylim(bottom=2.5)
    panels[0].legend(frameon=False, fontsize=8, loc="lower left")
    figure.supxlabel("points of each operator", fontsize=10)
    figure.supylabel("error on workloads held out", fontsize=10)
    figure.savefig(DOCS / "prior.png", dpi=110)


def main() -> None:
    """See the module's docstring."""
    if len(sys.argv) > 1:
        document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        RECORD.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    document = json.loads(RECORD.read_text(encoding="utf-8"))
    draw(document)
    fill(DOCS / "few-points.md", "validate-prior", table_text(document))
    print(table_text(document))


if __name__ == "__main__":
    main()
