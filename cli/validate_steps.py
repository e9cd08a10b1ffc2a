"""`kernelcast validate steps`."""

from collections import Counter
from pathlib import Path
from typing import Any

import click

from kernelcast.cli import completion
from kernelcast.cli.options import FILE, bundle_option, chosen_bundle, json_option, runs_fabric_option
from kernelcast.cli.tables import percent, signed_percent, text_table
from kernelcast.cli.terminal import is_quiet, print_json, say
from kernelcast.runtime.bundle.calibration import TIMELINES
from kernelcast.runtime.errors import UsageError, shown
from kernelcast.runtime.json_text import json_text
from kernelcast.runtime.request.fields import LAYOUT, OPTIONS, STACK, TimelineKind
from kernelcast.runtime.spelling import unknown_field
from kernelcast.runtime.stack import find_stack
from kernelcast.runtime.views.formatting import seconds
from kernelcast.validate.effects import Option, option_effects, to_dict
from kernelcast.validate.own_runs import known_runs
from kernelcast.validate.steps import FORMAT, Score, ScoredFile, ScoredStep, score_steps


@click.command(short_help="Score predictions against training steps that others measured.")
@click.argument("paths", metavar="[RUNS]...", nargs=-1, type=FILE)
@bundle_option
@runs_fabric_option
@click.option(
    "--stack", metavar="NAME|FILE", shell_complete=completion.stack_names, help=OPTIONS["stack"].help
)
@click.option(
    "--timeline",
    type=click.Choice(TIMELINES),
    default=OPTIONS["timeline"].default,
    help=OPTIONS["timeline"].help,
)
@click.option(
    "--picture",
    type=FILE,
    help="Draw predicted against measured steps, and errors by size and layout (.png, .svg or .pdf).",
)
@click.option(
    "--with",
    "changes",
    metavar="FIELD=VALUE",
    multiple=True,
    help="Set a field of what training software does for every step; may be given several times.",
)
@click.option(
    "--effects", is_flag=True, help="Show what each such field does to the errors, one after the other."
)
@click.option("--each", is_flag=True, help="Show every step.")
@json_option
def steps(
    paths: tuple[Path, ...],
    bundle: str | None,
    hardware: str | None,
    fabric: str,
    stack: str | None,
    timeline: TimelineKind,
    picture: Path | None,
    changes: tuple[str, ...],
    effects: bool,
    each: bool,
    as_json: bool,
) -> None:
    """Predict training steps that others measured, and score the predictions by model.

    RUNS are files of measured steps (TOML, docs/validation.md); without any, those that ship and those that were added
    (`validate add`). Each is predicted with
    the hardware and the fabric that it names, unless others are given. Nothing is fitted to the steps, but perhaps a
    --stack was, which the output then says; in the intervals, steps of whoever measured them have no part. Exit code 1
    where no step can be predicted.

    \b
    kernelcast validate steps
    kernelcast validate steps site.toml --bundle here.kcast --each
    kernelcast validate steps --picture steps.png
    kernelcast validate steps --with overlap_gradients=true
    kernelcast validate steps --effects
    """
    given = bundle is not None or hardware is not None
    if effects:
        if given or fabric or stack or changes or each:
            raise UsageError("--effects is given with another option, expected only runs files and --json")
        options = option_effects(paths)
        click.echo(json_text(to_dict(options), indent=2) if as_json else _effects(options))
        return
    found = score_steps(
        paths or known_runs(),
        bundle=chosen_bundle(bundle, hardware) if given else "",
        fabric=fabric,
        stack=None if stack is None else find_stack(stack),
        timeline=timeline,
        changed=_changed(changes),
    )
    document = {"format": FORMAT, "files": [one.to_dict() for one in found]}
    if picture is not None:
        _draw(picture, document)
    if as_json:
        print_json(document)
    else:
        say("\n\n".join(shown_file(one, each) for one in found))
    if all(step.estimate is None for one in found for step in one.steps):
        raise SystemExit(1)


def _draw(path: Path, document: dict[str, Any]) -> None:
    # Only here: matplotlib takes long to import, and is an extra.
    from kernelcast.validate.scoreboard import sources_of
    from kernelcast.validate.scoreboard_picture import COLUMNS, Panel, draw

    sources = [one for one in sources_of(document) if one.points]
    if not sources:
        raise UsageError("there is nothing to draw: no step can be predicted")
    panels = [Panel(title="", column=column, sources=sources) for column in COLUMNS]
    draw(path, [panels])


def _changed(changes: tuple[str, ...]) -> dict[str, Any]:
    """Fields and values of `--with`."""
    found: dict[str, Any] = {}
    for text in changes:
        name, equals, value = text.partition("=")
        name = name.replace("-", "_")
        if not equals:
            raise UsageError(f"--with is {shown(text)}, expected FIELD=VALUE")
        if name not in STACK:
            raise unknown_field(name, STACK, path="--with ")
        found[name] = LAYOUT[name].kind.read(value)
        if found[name] is None:
            raise UsageError(f"--with {name} is {shown(value)}, expected {LAYOUT[name].kind.expected}")
    return found


def _effects(options: tuple[Option, ...]) -> str:
    """A row per option, a column per source: mean error, mean absolute error."""
    heads = ["option", *(f"{effect.site}, {effect.steps} steps" for effect in options[0].effects)]
    rows = [
        [
            "as stated" if one.field is None else f"{one.field}={_plain(one.value)}",
            *(
                f"{signed_percent(effect.mean_error)}, {percent(effect.mean_abs_error)}"
                if effect.changed or one.field is None
                else "="
                for effect in one.effects
            ),
        ]
        for one in options
    ]
    return text_table(heads, rows)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def shown_file(found: ScoredFile, each: bool = False) -> str:
    """A file's scores as text; with `each` every step."""
    file = found.file
    over = f" over {found.fabric}" if found.fabric else ""
    lines = [f"{file.site}: {file.hardware}; predicted as {found.asked}{over}"]
    if file.stack and not is_quiet():
        lines.append(f"ran with {file.stack}")
    if found.stack is not None:
        fitted = (
            " (NOTE: fitted to these very steps; kernelcast stack fit leaves steps out)"
            if found.is_fitted
            else ""
        )
        lines.append(f"stack {found.stack}{fitted}")
    lines.append(_scores(found.scores))
    if is_quiet():
        return "\n".join([*lines, "", _each(found.steps)] if each else lines)
    reasons = Counter((step.run.label, step.reason) for step in found.steps if step.estimate is None)
    lines += [f"not predicted: {count} × {label}: {why}" for (label, why), count in reasons.items()]
    lines.append(f"measured: {file.source}{f'; {file.licence}' if file.licence else ''}")
    if each:
        lines += ["", _each(found.steps)]
    return "\n".join(lines)


def _scores(scores: tuple[Score, ...]) -> str:
    columns = {
        "model": [score.model for score in scores],
        "steps": [f"{score.steps}" for score in scores],
        "mean error": [signed_percent(score.mean_error) for score in scores],
        "mean absolute": [percent(score.mean_abs_error) for score in scores],
        "in interval": [f"{score.inside} of {score.predicted}" for score in scores],
        "half-width": [percent(score.median_half_width) for score in scores],
        "memory error": [signed_percent(score.mean_memory_error) for score in scores],
        "largest": [signed_percent(score.largest_memory_error) for score in scores],
        "least left": [_left(score) for score in scores],
        "predicted too large": [f"{score.too_large or '-'}" for score in scores],
        "published error": [percent(score.mean_abs_published_error) for score in scores],
    }
    return _table(columns)


def _each(steps: tuple[ScoredStep, ...]) -> str:
    columns = {
        "step": [step.run.label for step in steps],
        "tokens": [f"{step.run.model.sequence_length}" for step in steps],
        "b × m": [
            f"{step.run.parallelism.micro_batch} × {step.run.parallelism.micro_batches}" for step in steps
        ],
        "ZeRO, recompute": [
            f"{step.run.parallelism.zero}, {step.run.parallelism.recompute}" for step in steps
        ],
        "measured": [seconds(step.run.measured_s) for step in steps],
        "predicted": [seconds(step.estimate.step_time_s) if step.estimate else "-" for step in steps],
        "error": [signed_percent(step.error) for step in steps],
        "90 % interval": [_interval(step) for step in steps],
        "memory": [_gib(step) for step in steps],
        "memory error": [", ".join(map(signed_percent, step.memory_errors)) or "-" for step in steps],
        "left": ["-" if step.margin_gib is None else f"{step.margin_gib:.1f} GiB" for step in steps],
    }
    return _table(columns)


def _table(columns: dict[str, list[str]]) -> str:
    """A table without the columns that say nothing."""
    kept = {head: cells for head, cells in columns.items() if any(cell != "-" for cell in cells)}
    return text_table(list(kept), list(zip(*kept.values(), strict=True)))


def _interval(step: ScoredStep) -> str:
    if step.estimate is None or step.estimate.interval_s is None:
        return "-"
    return (
        f"{' to '.join(map(seconds, step.estimate.interval_s))}, {'inside' if step.is_inside else 'outside'}"
    )


def _gib(step: ScoredStep) -> str:
    if step.predicted_memory_gib is None:
        return "-"
    sizes = ", ".join(f"{size_gib:.1f}" for size_gib in step.predicted_memory_gib)
    return f"{sizes} GiB{' (does not fit)' if step.fits is False else ''}"


def _left(score: Score) -> str:
    return "-" if score.least_margin_gib is None else f"{score.least_margin_gib:.1f} GiB"
