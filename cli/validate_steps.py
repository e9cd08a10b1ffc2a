"""`kernelcast validate steps`, `add` and `errors`: predictions of measured training steps."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import click

from kernelcast.cli import option
from kernelcast.cli.fields import chosen_bundle, field_options
from kernelcast.cli.tables import print_table, signed_percent, text_table
from kernelcast.cli.terminal import Shown, is_quiet, say
from kernelcast.runtime.answers.uncertainty import StepErrors
from kernelcast.runtime.dataclass import asdict
from kernelcast.runtime.errors import UsageError, one_line, shown, unknown_field
from kernelcast.runtime.output_file import write_pieces
from kernelcast.runtime.request.fields import LAYOUT, OPTIONS, STACK, TimelineKind
from kernelcast.runtime.stack import find_stack
from kernelcast.runtime.views.formatting import percent, seconds
from kernelcast.validate.effects import Option, option_effects, to_dict
from kernelcast.validate.own_runs import add_runs, known_runs
from kernelcast.validate.step_errors import step_errors, step_errors_json
from kernelcast.validate.steps import FORMAT, Score, ScoredFile, ScoredStep, score_steps


@click.command(short_help="Score predictions against training steps measured by others.")
@click.argument("paths", metavar="[RUNS]...", nargs=-1, type=option.FILE)
@option.bundle
@option.runs_fabric
@field_options(OPTIONS["stack"], OPTIONS["timeline"])
@option.file(
    "--picture", "Plot predicted against measured steps, and errors by size and layout (.png, .svg or .pdf)."
)
@option.several(
    "--with",
    "changes",
    "Set a field of the training software for every step; repeatable.",
    metavar="FIELD=VALUE",
)
@option.flag("--effects", "Show the effect of each field of the training software on the errors.")
@option.flag("--each", "Show every step.")
@option.json
def steps(
    paths: tuple[Path, ...],
    bundle: str | None,
    hardware: str | None,
    fabric: str,
    stack: str | None,
    timeline: TimelineKind | None,
    picture: Path | None,
    changes: tuple[str, ...],
    effects: bool,
    each: bool,
) -> Shown:
    """Predict training steps measured by others, and score the predictions by model.

    RUNS are files of measured steps (TOML, docs/validation.md); by default, those that ship and those added with
    validate add. Each names the hardware and fabric of its steps, which --hardware, --bundle and --fabric override.
    Nothing is fitted to the steps; a note names a --stack that was. Intervals of a step are computed without errors of
    its source. Exit status 1 if no step can be predicted.

    \b
    kernelcast validate steps
    kernelcast validate steps site.toml --bundle here.kcast --each
    kernelcast validate steps --picture steps.png
    kernelcast validate steps --with overlap_gradients=true
    kernelcast validate steps --effects
    """
    given = bundle is not None or hardware is not None
    if effects:
        if given or any((fabric, stack, timeline, picture, changes, each)):
            raise UsageError("--effects is given with another option, expected only runs files and --json")
        options = option_effects(paths)
        return Shown(to_dict(options), lambda: click.echo(_effects(options)))
    found = score_steps(
        paths or known_runs(),
        bundle=chosen_bundle(bundle, hardware) if given else "",
        fabric=fabric,
        stack=None if stack is None else find_stack(stack),
        timeline=timeline or OPTIONS["timeline"].default,
        changed=_changed(changes),
    )
    document = {"format": FORMAT, "files": [one.to_dict() for one in found]}
    if picture is not None:
        _draw(picture, document)
    unpredicted = all(step.estimate is None for one in found for step in one.steps)
    return Shown(
        document,
        lambda: say("\n\n".join(_file_text(one, each) for one in found)),
        status=1 if unpredicted else 0,
    )


@click.command(short_help="Add your own measured steps to those that are scored.")
@click.argument("path", metavar="RUNS", type=option.FILE)
@option.flag("--replace", "Replace an added file of the same name.")
def add(path: Path, replace: bool) -> None:
    """Check a file of measured steps (TOML, docs/validation.md), predict them, and keep a copy.

    From then on, validate steps without files, its --picture and make scoreboard include them. The copy is stored in
    the folder $KERNELCAST_RUNS, by default ~/.local/share/kernelcast/runs; delete it there to remove it. Nothing leaves
    this machine, and nothing is fitted to the steps.

    \b
    kernelcast validate add ours.toml
    """
    found = add_runs(path, replace=replace)
    click.echo(_file_text(found.scored))
    click.echo(f"\n{one_line(str(found.path))}: {'added' if found.is_new else 'already there'}")


def _draw(path: Path, document: dict[str, Any]) -> None:
    # Imported here: matplotlib is slow to import, and an extra.
    from kernelcast.validate.scoreboard import COLUMNS, Panel, draw, sources_of

    sources = [one for one in sources_of(document) if one.points]
    if not sources:
        raise UsageError("--picture has nothing to plot: no step can be predicted")
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


def _file_text(found: ScoredFile, each: bool = False) -> str:
    """A file's scores as text; with `each` every step."""
    file = found.file
    over = f" over {found.fabric}" if found.fabric else ""
    lines = [f"{file.site}: {file.hardware}; predicted as {found.asked}{over}"]
    if file.stack and not is_quiet():
        lines.append(f"ran with {file.stack}")
    if found.stack is not None:
        fitted = (
            " (NOTE: fitted to these steps; kernelcast stack fit cross-validates)" if found.is_fitted else ""
        )
        lines.append(f"stack {found.stack}{fitted}")
    lines.append(_scores(found.scores))
    if is_quiet():
        return "\n".join([*lines, "", _each(found.steps)] if each else lines)
    reasons = Counter((step.run.label, step.reason) for step in found.steps if step.estimate is None)
    lines += [f"not predicted: {count} × {label}: {why}" for (label, why), count in reasons.items()]
    lines += [
        f"flagged, not scored: {step.run.label}: {step.run.flag}" for step in found.steps if step.run.flag
    ]
    lines += [f"cannot be predicted: {one}" for one in file.left_out]
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
        "least left": [_gibibytes(score.least_margin_gib) for score in scores],
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
        "left": [_gibibytes(step.margin_gib) for step in steps],
    }
    return _table(columns)


def _table(columns: dict[str, list[str]]) -> str:
    """A table without its empty columns."""
    kept = {head: cells for head, cells in columns.items() if any(cell not in ("-", "–") for cell in cells)}
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


def _gibibytes(size_gib: float | None) -> str:
    return "-" if size_gib is None else f"{size_gib:.1f} GiB"


ERRORS_FORMAT = "kernelcast.step-errors/1"
_LEVELS = (0.05, 0.5, 0.95)


@click.command(short_help="Show measured / predicted ratios of the steps that ship.")
@option.file("--output", "-o", "Write the table (JSON).")
@option.json
def errors(output: Path | None) -> Shown:
    """Predict the measured steps that ship, and show quantiles of measured / predicted by source and timeline.

    Prediction intervals of steps come from these ratios, with equal weight per source (docs/trust.md, A step). --output
    runtime/shipped/step_errors.json replaces the table that ships.

    \b
    kernelcast validate errors
    """
    found = step_errors()
    if output is not None:
        write_pieces(output, [step_errors_json(found)])
    return Shown({"format": ERRORS_FORMAT, **asdict(found)}, lambda: _show_errors(found), written=output)


def _show_errors(found: StepErrors) -> None:
    sources = [
        (
            one.timeline,
            f"{one.name}, {one.kind}, {one.model}",
            f"{one.steps}",
            f"{one.unsteady or '-'}",
            StepErrors(sources=(one,)),
        )
        for one in found.sources
    ]
    sources += [
        (timeline, "all, equal weights", "", "", found.of(timeline))
        for timeline in dict.fromkeys(one.timeline for one in found.sources)
    ]
    heads = (
        "timeline",
        "source",
        "steps",
        "unsteady, left out",
        "5 %",
        "measured / predicted, median",
        "95 %",
    )
    rows = [
        (*cells, *(f"{math.exp(one):.3f}" for one in errors.quantiles(_LEVELS))) for *cells, errors in sources
    ]
    click.echo(text_table(heads, rows))
    click.echo("\nStacks on other devices than they were fitted to:")
    print_table(
        found.carried,
        ("stack", lambda one: one.stack),
        ("source", lambda one: one.name),
        ("steps", lambda one: f"{one.steps}"),
        ("measured / predicted - 1, mean", lambda one: signed_percent(math.expm1(one.log_error))),
    )
    click.echo(f"root mean square {percent(found.carried_spread)}")
