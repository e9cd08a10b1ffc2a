"""The table and the picture of docs/few-points.md, A new device from a few points: `make validate-prior`.

python docs/generate_prior.py [FILE]    # FILE: what `kernelcast validate prior --json` printed, kept in docs/prior.json
"""

import json
import sys
from pathlib import Path
from typing import Any

from kernelcast.docs.error_curves import Curve, Panel, draw
from kernelcast.docs.markdown import fill, percent, table

DOCS = Path(__file__).resolve().parent
RECORD = DOCS / "prior.json"
WAYS = {
    "telling": ("chosen", "#1f6fb4", "s"),
    "random": ("at random", "#7fb2d9", "o"),
    "without prior": ("at random, without a prior", "#888888", "^"),
}
"""What the page calls them; colour and marker."""
SHOWN = (1, 5, 10, 20, 40)


def table_text(document: dict[str, Any]) -> str:
    """The table of docs/few-points.md."""
    uncorrected = document["uncorrected"]
    operators = len(uncorrected["operators"])
    roles = sum(len(one["roles"]) for one in uncorrected["operators"])
    rows = [("0 (scaled by the peaks)", _cell(uncorrected), "", "", "0")]
    for points in SHOWN:
        own = {one["way"]: one for one in document["found"] if one["points"] == points}
        cells = (_cell(own[way]) for way in WAYS)
        rows.append((f"{points}", *cells, f"{60 * own['telling']['minutes']:.0f} s"))
    heads = ("points of each operator", *(name for name, _, _ in WAYS.values()), "device time")
    lines = [
        f"{document['prior']} → {document['target']}, {operators} operators and directions ({roles} with their roles), "
        f"{document['draws']} draws; left out: {', '.join(document['left_out'])}. Median / mean of the operators' mean "
        "absolute errors on workloads held out; in brackets of their roles, which share an operator's points.",
        "",
        *table(heads, rows, is_padded=False),
    ]
    return "\n".join(lines)


def _cell(one: dict[str, Any]) -> str:
    return (
        f"{percent(one['median_error'], 1)} / {percent(one['mean_error'], 1)} "
        f"({percent(one['median_role_error'], 1)} / {percent(one['mean_role_error'], 1)})"
    )


def picture(document: dict[str, Any]) -> None:
    """docs/prior.png: mean and median error against the number of points."""
    points = sorted({one["points"] for one in document["found"]})
    panels = []
    for name, title in (("median_error", "median of the operators"), ("mean_error", "mean")):
        curves = []
        for way, (label, colour, marker) in WAYS.items():
            own = [one for one in document["found"] if one["way"] == way]
            counts, errors = [one["points"] for one in own], [one[name] for one in own]
            curves.append(Curve(label, colour, marker, counts, errors))
        alone = document["uncorrected"][name]
        panels.append(Panel(title, curves, points, alone, f"prior alone, scaled by peaks: {alone:.0%}"))
    draw(
        DOCS / "prior.png",
        [panels],
        size=(9, 3.8),
        axis="points of each operator",
        errors="error on held-out workloads",
    )


def main() -> None:
    """See the module's docstring."""
    if len(sys.argv) > 1:
        document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        RECORD.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    document = json.loads(RECORD.read_text(encoding="utf-8"))
    picture(document)
    fill(DOCS / "few-points.md", "validate-prior", table_text(document))
    print(table_text(document))


if __name__ == "__main__":
    main()
