"""`kernelcast validate errors`."""

import math
from dataclasses import asdict
from pathlib import Path

import click

from kernelcast.cli.options import FILE, json_option
from kernelcast.cli.tables import percent, signed_percent, text_table
from kernelcast.cli.terminal import print_json
from kernelcast.runtime.answers.step_errors import StepErrors
from kernelcast.runtime.errors import DataError, one_line, shown_path
from kernelcast.validate.step_errors import step_errors, step_errors_toml

FORMAT = "kernelcast.step-errors/1"
_LEVELS = (0.05, 0.5, 0.95)


@click.command(short_help="What sums of operators get wrong in measured steps: what intervals are made of.")
@click.option("--output", "-o", type=FILE, help="Write the table (TOML).")
@json_option
def errors(output: Path | None, as_json: bool) -> None:
    """Predict the measured steps that ship, and show quantiles of measured / predicted by source and timeline.

    The interval of a step is drawn from them, every source weighing the same (docs/trust.md, A step). With --output
    runtime/shipped/step_errors.toml they take the place of those that ship.

    \b
    kernelcast validate errors
    """
    found = step_errors()
    if output is not None:
        try:
            output.write_text(step_errors_toml(found), encoding="utf-8")
        except OSError as error:
            raise DataError(f"{shown_path(output)}: cannot be written ({error.strerror})") from error
    if as_json:
        print_json({"format": FORMAT, **asdict(found)})
        return
    click.echo(_shown(found))
    if output is not None:
        click.echo(f"\n{one_line(str(output))}: written")


def _shown(found: StepErrors) -> str:
    sources = [
        (
            one.timeline,
            one.name,
            f"{one.steps}",
            f"{one.unsteady or '-'}",
            *_ratios(StepErrors(sources=(one,))),
        )
        for one in found.sources
    ]
    sources += [
        (timeline, "all, weighing the same", "", "", *_ratios(found.of(timeline)))
        for timeline in dict.fromkeys(one.timeline for one in found.sources)
    ]
    carried = [
        (one.stack, one.name, f"{one.steps}", signed_percent(math.expm1(one.log_error)))
        for one in found.carried
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
    return "\n".join(
        (
            text_table(heads, sources),
            "",
            "Stacks on other devices than those that they were fitted to:",
            text_table(("stack", "source", "steps", "measured / predicted - 1, mean"), carried),
            f"root mean square {percent(found.carried_spread)}",
        )
    )


def _ratios(found: StepErrors) -> list[str]:
    return [f"{math.exp(one):.3f}" for one in found.quantiles(_LEVELS)]
