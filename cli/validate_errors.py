"""`kernelcast validate errors`."""

import math
from pathlib import Path

import click

from kernelcast.cli.options import FILE, Shown, json_option
from kernelcast.cli.tables import print_table, signed_percent, text_table
from kernelcast.runtime.answers.step_errors import StepErrors
from kernelcast.runtime.dataclass import asdict
from kernelcast.runtime.errors import DataError, one_line, shown_path
from kernelcast.runtime.views.formatting import percent
from kernelcast.validate.step_errors import step_errors, step_errors_toml

FORMAT = "kernelcast.step-errors/1"
_LEVELS = (0.05, 0.5, 0.95)


@click.command(short_help="Show errors of sums of operators in measured steps.")
@click.option("--output", "-o", type=FILE, help="Write the table (TOML).")
@json_option
def errors(output: Path | None) -> Shown:
    """Predict the measured steps that ship, and show quantiles of measured / predicted by source and timeline.

    Intervals of steps are drawn from these ratios, with equal weight per source (docs/trust.md, A step). --output
    runtime/shipped/step_errors.toml replaces the table that ships.

    \b
    kernelcast validate errors
    """
    found = step_errors()
    if output is not None:
        try:
            output.write_text(step_errors_toml(found), encoding="utf-8")
        except OSError as error:
            raise DataError(f"{shown_path(output)}: cannot be written ({error.strerror})") from error

    def show() -> None:
        _show(found)
        if output is not None:
            click.echo(f"\n{one_line(str(output))}: written")

    return Shown({"format": FORMAT, **asdict(found)}, show)


def _show(found: StepErrors) -> None:
    sources = [
        (one.timeline, one.name, f"{one.steps}", f"{one.unsteady or '-'}", StepErrors(sources=(one,)))
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
    click.echo(text_table(heads, [(*cells, *_ratios(errors)) for *cells, errors in sources]))
    click.echo("\nStacks on other devices than they were fitted to:")
    print_table(
        found.carried,
        ("stack", lambda one: one.stack),
        ("source", lambda one: one.name),
        ("steps", lambda one: f"{one.steps}"),
        ("measured / predicted - 1, mean", lambda one: signed_percent(math.expm1(one.log_error))),
    )
    click.echo(f"root mean square {percent(found.carried_spread)}")


def _ratios(found: StepErrors) -> list[str]:
    return [f"{math.exp(one):.3f}" for one in found.quantiles(_LEVELS)]
