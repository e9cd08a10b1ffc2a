"""Write docs/today.md: published steps of 2024 to 2026 with their predictions, from docs/validation/today.csv.

python docs/generate_today.py            # the page, from what is kept
python docs/generate_today.py --again    # predicts all steps, and keeps them
"""

import csv
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median

from kernelcast.docs.markdown import percent, table
from kernelcast.validate.steps import TODAY, score_steps, shipped_runs

FOLDER = Path(__file__).resolve().parent
KEPT, TEXT, PAGE = (
    FOLDER / "validation" / "today.csv",
    FOLDER / "validation" / "today.md",
    FOLDER / "today.md",
)
LINKS = {
    "NVIDIA-NeMo/Megatron-Bridge": "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/067987df/docs/performance-summary.md",
    "pytorch/torchtitan": "https://github.com/pytorch/torchtitan/tree/b5bcd76c/benchmarks",
    "MLCommons": "https://github.com/mlcommons/training_results_v5.1",
}
NOISE = {
    "NVIDIA-NeMo/Megatron-Bridge": "1 to 9 % between releases",
    "MLCommons": "1.8 % between submitters",
    "pytorch/torchtitan": "not known",
}
_percent, _signed = partial(percent, digits=1), partial(percent, digits=1, is_signed=True)
Row = Mapping[str, str]


def rows() -> list[dict[str, str]]:
    """All steps with their predictions, then the steps that cannot be predicted."""
    found = []
    for one in score_steps(shipped_runs(names=TODAY)):
        for step in one.steps:
            low, high = (step.estimate.interval_s if step.estimate else None) or ("", "")
            found.append(
                {
                    "source": one.file.publisher,
                    "device": one.file.device,
                    "model": step.run.model.name,
                    "kind": step.run.kind,
                    "step": step.run.label,
                    "devices": str(step.run.parallelism.world_size),
                    "measured_s": f"{step.run.measured_s:.5g}",
                    "predicted_s": f"{step.estimate.step_time_s:.5g}" if step.estimate else "",
                    "low_s": f"{low:.5g}" if low else "",
                    "high_s": f"{high:.5g}" if high else "",
                    "note": step.reason or step.run.flag,
                }
            )
        for text in one.file.left_out:
            name, _, why = text.rpartition(": ")
            found.append({"source": one.file.publisher, "device": one.file.device, "step": name, "note": why})
    return found


def groups(every: Sequence[Row], *names: str) -> list[list[str]]:
    """Rows of a table: scored steps by some columns."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in every:
        if row["predicted_s"] and not row["note"]:
            found.setdefault(tuple(row[name] for name in names), []).append(row)
    return [
        [
            *key,
            str(len(own)),
            _signed(mean(map(error, own))),
            _percent(mean(abs(error(row)) for row in own)),
            f"{sum(map(is_inside, own))} of {len(own)}",
            _percent(median(map(half_width, own))),
        ]
        for key, own in sorted(found.items())
    ]


def error(row: Row) -> float:
    """Predicted / measured - 1."""
    return float(row["predicted_s"]) / float(row["measured_s"]) - 1


def span(every: Sequence[Row], words: str) -> str:
    """The least and the largest error of some steps, in words: `gb200; CP4, CP8; -rowwise; in s`.

    Steps have one of the texts between commas of each part, none after a minus. With `in s` errors are in seconds.
    """
    chosen = [row for row in every if row["predicted_s"] and not row["note"]]
    parts = words.split("; ")
    for part in parts:
        if part != "in s":
            texts = part.removeprefix("-").split(", ")
            chosen = [
                row
                for row in chosen
                if any(one in " ".join(row.values()) for one in texts) != (part[0] == "-")
            ]
    in_s = "in s" in parts
    errors = [error(row) * (float(row["measured_s"]) if in_s else 100) for row in chosen]
    unit = "s" if in_s else "%"
    sides = ["too long" if one > 0 else "too short" for one in (min(errors), max(errors))]
    least, most = (f"{abs(one):.0f}" for one in (min(errors), max(errors)))
    if sides[0] != sides[1]:
        return f"from {least} {unit} {sides[0]} to {most} {unit} {sides[1]}"
    low, high = sorted((least, most), key=float)
    return f"{low} {unit} {sides[0]}" if low == high else f"{low} to {high} {unit} {sides[0]}"


def is_inside(row: Row) -> bool:
    """Whether the measured step lies in its interval."""
    return float(row["low_s"]) <= float(row["measured_s"]) <= float(row["high_s"])


def half_width(row: Row) -> float:
    """Half of the interval over the prediction."""
    return (float(row["high_s"]) - float(row["low_s"])) / 2 / float(row["predicted_s"])


def page(text: str, every: Sequence[Row]) -> str:
    """The page with its tables."""
    heads = ["steps", "mean error", "mean absolute", "in interval", "half-width"]
    reasons: dict[tuple[str, str], int] = {}
    for row in every:
        if not row["predicted_s"]:
            key = (row["source"], row["note"])
            reasons[key] = reasons.get(key, 0) + 1
    tables: dict[str, Iterable[str]] = {
        "sources": table(
            ["source", "steps", "predicted", "noise"],
            [
                [
                    f"[{source}]({link})",
                    str(len(own)),
                    str(sum(bool(row["predicted_s"]) for row in own)),
                    NOISE[source],
                ]
                for source, link in LINKS.items()
                if (own := [row for row in every if row["source"] == source])
            ],
        ),
        "kinds": table(["source", "format and kind", *heads], groups(every, "source", "kind")),
        "devices": table(["device", "format and kind", *heads], groups(every, "device", "kind")),
        "models": table(["model", "source", *heads], groups(every, "model", "source")),
        "refused": table(
            ["source", "why", "steps"],
            [[source, why, str(count)] for (source, why), count in sorted(reasons.items())],
        ),
        "flagged": table(
            ["step", "measured", "error", "why"],
            [
                [row["step"], f"{row['measured_s']} s", _signed(error(row)), row["note"]]
                for row in every
                if row["predicted_s"] and row["note"]
            ],
        ),
        "steps": table(
            ["device", "step", "measured", "predicted", "error", "90 % interval"],
            [
                [
                    row["device"],
                    row["step"],
                    f"{row['measured_s']} s",
                    f"{row['predicted_s']} s",
                    _signed(error(row)),
                    f"{row['low_s']} to {row['high_s']} s{'' if is_inside(row) else ', outside'}",
                ]
                for row in every
                if row["predicted_s"]
            ],
        ),
    }
    text = re.sub(r"\{([^{}\n]+)\}", lambda found: span(every, found[1]), text)
    for name, lines in tables.items():
        text = text.replace(f"<!-- {name} -->\n", "\n".join(lines) + "\n")
    return text


def kept() -> list[dict[str, str]]:
    """The steps that are kept."""
    with KEPT.open(newline="", encoding="utf-8") as file:
        return [{name: value or "" for name, value in row.items()} for row in csv.DictReader(file)]


def keep(every: Sequence[Row]) -> None:
    """Keep all steps."""
    with KEPT.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(every[0]), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(every)


if __name__ == "__main__":
    if sys.argv[1:] == ["--again"]:
        keep(rows())
    PAGE.write_text(page(TEXT.read_text(encoding="utf-8"), kept()), encoding="utf-8")
