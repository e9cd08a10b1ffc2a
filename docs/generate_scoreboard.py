"""Write docs/scoreboard.md and its pictures from the results that `make scoreboard` keeps in docs/validation/.

python docs/generate_scoreboard.py
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from kernelcast.docs.markdown import percent
from kernelcast.docs.scoreboard_tables import (
    Board,
    coverage,
    half_width,
    intervals,
    kinds,
    mean_abs,
    memory,
    own_predictors,
    sources,
    targets,
)
from kernelcast.validate.scoreboard import Panel, Point, draw, sources_of

_percent, _whole = partial(percent, digits=1), partial(percent, digits=0)
FOLDER = Path(__file__).resolve().parent
KEPT = FOLDER / "validation"
TEXT, PAGE = KEPT / "scoreboard.md", FOLDER / "scoreboard.md"
TIMES_PICTURE, ERRORS_PICTURE = FOLDER / "scoreboard.png", FOLDER / "scoreboard-errors.png"
README, BEGIN, END = FOLDER.parent / "README.md", "<!-- scoreboard -->", "<!-- end of scoreboard -->"
STACKS = ("gpt-neox", "fsdp-composer", "megatron-core")


def board() -> Board:
    """From what is kept."""
    plain = sources_of(_kept("steps"))
    by_file: dict[str, list[Mapping[str, Any]]] = {}
    for name in STACKS:
        for step in _kept(f"scoreboard/{name}")["left_out_steps"]:
            by_file.setdefault(step["runs_file"], []).append(step)
    run = KEPT / "run.json"
    return Board(
        plain=plain,
        closed_form=sources_of(_kept("scoreboard/closed-form")),
        stacked=tuple(
            replace(one, points=tuple(Point.of(step, one.asked) for step in by_file[one.runs_file]))
            for one in plain
            if one.runs_file in by_file
        ),
        cpu=_kept("run") if run.exists() else None,
    )


def _kept(name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((KEPT / f"{name}.json").read_text(encoding="utf-8"))["result"]
    return found


def page(text: str, found: Board) -> str:
    """The page with its tables."""
    for name, lines in (
        ("targets", targets(found)),
        ("sources", sources(found)),
        ("intervals", intervals(found)),
        ("kinds", kinds(found)),
        ("own predictors", own_predictors(found)),
        ("memory", memory(_kept("steps"))),
    ):
        text = text.replace(f"<!-- {name} -->\n", "\n".join(lines) + "\n")
    return text


def summary(found: Board) -> list[str]:
    """README's three lines."""
    every, stacked = (
        [point for one in group for point in one.points] for group in (found.plain, found.stacked)
    )
    paper = mean_abs(found.named("plain", "perlmutter.toml").points)
    closed = mean_abs(found.named("closed_form", "perlmutter.toml").points)
    cpu = found.cpu
    trained = (
        ""
        if cpu is None
        else f"; {len(cpu['runs'])} configurations trained on a CPU: {_percent(cpu['mean_abs_error'])}, "
        f"worst {_percent(abs(cpu['worst_error']))}"
    )
    return [
        f"- {len(every)} published training steps on A100, GH200 and B200, with the shipped bundles: mean absolute "
        f"error {_percent(mean_abs(every))}, and {_percent(mean_abs(stacked))} with a stack fitted without steps of "
        "the same model.",
        f"- The paper's five steps on 16 to 128 A100: {_percent(closed)} with the closed form, {_percent(paper)} "
        f"simulated (the paper's own predictions: 5.0 %){trained}.",
        f"- The 90 % intervals contain {_whole(coverage(found.plain))} of the steps (sources equally weighted); "
        f"their median half-width is {_percent(half_width(found.plain))}.",
    ]


def pictures(found: Board) -> None:
    """Both pictures."""
    both = (
        ("uncalibrated", found.plain),
        ("stack, left out by model", found.stacked),
    )
    draw(
        TIMES_PICTURE,
        [[Panel(title=name, column="times", sources=sources) for name, sources in both]],
        panel_width=5.2,
    )
    columns = ("devices", "tokens", "layout", "hardware")
    draw(
        ERRORS_PICTURE,
        [[Panel(title=name, column=column, sources=sources) for column in columns] for name, sources in both],
    )


if __name__ == "__main__":
    known = board()
    PAGE.write_text(page(TEXT.read_text(encoding="utf-8"), known), encoding="utf-8")
    pictures(known)
    head, rest = README.read_text(encoding="utf-8").split(BEGIN)
    README.write_text(
        head + BEGIN + "\n".join(["", *summary(known), ""]) + END + rest.split(END)[1], encoding="utf-8"
    )
