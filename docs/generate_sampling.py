"""The table and the picture of docs/few-points.md, What adaptive sampling saves: `make bench-sampling`.

python docs/generate_sampling.py    # from docs/sampling.json, which benchmarks/bench_sampling.py writes
"""

import json
from pathlib import Path
from typing import Any

from kernelcast.docs.error_curves import Curve, Panel, draw
from kernelcast.docs.markdown import fill, percent, table

DOCS = Path(__file__).resolve().parent
RECORD = DOCS / "sampling.json"


def needed(found: dict[str, Any]) -> float | None:
    """Measurements from which on adaptive sampling is as good as random at its end, interpolated; None: never."""
    goal, sizes, errors = found["random"][-1], found["sizes"], found["adaptive"]
    worse = [number for number, value in enumerate(errors) if value > goal]
    if not worse:
        return float(sizes[0])
    last = worse[-1]
    if last == len(errors) - 1:
        return None
    share = (errors[last] - goal) / (errors[last] - errors[last + 1])
    return float(sizes[last] + share * (sizes[last + 1] - sizes[last]))


def table_text(document: dict[str, Any]) -> str:
    """The table of docs/few-points.md."""
    rows = []
    for name, found in document["operators"].items():
        after, end = needed(found), found["sizes"][-1]
        reached = "not within them" if after is None else f"{after:.0f} ({100 * after / end:.0f} %)"
        errors = (percent(found[way][-1], 1) for way in ("random", "adaptive"))
        rows.append((name, f"{end}", *errors, reached))
    heads = ("operator", "measurements", "random", "adaptive", "adaptive is as good after")
    return "\n".join(
        [
            f"Means over {len(document['seeds'])} seeds; {document['reached_half']} of {len(document['operators'])} "
            "operators reach random's last error with at most half of its measurements.",
            "",
            *table(heads, rows, is_padded=False),
        ]
    )


def picture(document: dict[str, Any]) -> None:
    """docs/sampling.png: a panel per operator, error against measurements."""
    panels = []
    for name, found in document["operators"].items():
        sizes, end = found["sizes"], found["sizes"][-1]
        curves = [
            Curve(way, colour, marker, sizes, found[way])
            for way, colour, marker in (("random", "#888888", "o"), ("adaptive", "#1f6fb4", "s"))
        ]
        marked = [*(size for size in sizes[:-1:2] if size < end / 1.5), end]
        panels.append(Panel(name, curves, marked, found["random"][-1]))
    draw(
        DOCS / "sampling.png",
        [panels[:3], panels[3:]],
        size=(11, 6.2),
        axis="measurements",
        errors="error on held-out workloads",
    )


def main() -> None:
    """See the module's docstring."""
    document = json.loads(RECORD.read_text(encoding="utf-8"))
    picture(document)
    fill(DOCS / "few-points.md", "bench-sampling", table_text(document))
    print(table_text(document))


if __name__ == "__main__":
    main()
