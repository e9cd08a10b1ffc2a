"""`kernelcast validate plans`."""

from collections.abc import Sequence
from statistics import fmean

import click

from kernelcast.cli import option
from kernelcast.cli.tables import print_table, signed_percent
from kernelcast.cli.terminal import Shown
from kernelcast.runtime.views.formatting import percent
from kernelcast.validate.plans import PlannedRun, planned_runs

FORMAT = "kernelcast.validated-plans/1"


@click.command(short_help="Compare plans with published runs.")
@option.json
def plans() -> Shown:
    """Plan published training runs and compare goodput or GPU-hours with what was reported.

    The failures of a run are left out of the rate that predicts it (docs/runs.md).

    \b
    kernelcast validate plans
    """
    found = list(planned_runs())
    document = {"format": FORMAT, "runs": [one.to_dict() for one in found], **errors_of(found)}
    return Shown(document, lambda: _show(found))


def errors_of(found: Sequence[PlannedRun]) -> dict[str, float]:
    """Mean absolute errors, and how many reports lie within their intervals."""
    goodput = [abs(one.error) for one in found if one.run.goodput is not None]
    hours = [abs(one.error) for one in found if one.run.goodput is None]
    return {
        "goodput_error": fmean(goodput),
        "gpu_hours_error": fmean(hours),
        "within": sum(one.is_within for one in found),
    }


def _show(found: Sequence[PlannedRun]) -> None:
    print_table(
        found,
        ("run", lambda one: one.name),
        ("reported", lambda one: _text(one, one.reported, bound=one.run.at_least)),
        ("predicted", lambda one: _text(one, one.predicted)),
        ("90 % interval", lambda one: " to ".join(_text(one, end) for end in one.interval)),
        ("within", lambda one: "yes" if one.is_within else "NO"),
        ("error", lambda one: _error(one)),
        ("what the report leaves open", lambda one: one.run.vague),
    )
    click.echo()
    print_table(
        [(one, lost) for one in found if (lost := one.lost_per_failure_h) is not None],
        ("run", lambda row: row[0].name),
        ("lost per failure, reported", lambda row: f"{'< ' * row[0].run.at_least}{row[1][0]:.2f} h"),
        ("planned", lambda row: f"{row[1][1]:.2f} h"),
    )
    errors = errors_of(found)
    click.echo(
        f"\nmean error: goodput {100 * errors['goodput_error']:.1f} points, GPU-hours "
        f"{percent(errors['gpu_hours_error'])}; {errors['within']:.0f} of {len(found)} within the interval"
    )


def _text(one: PlannedRun, value: float, *, bound: bool = False) -> str:
    text = percent(value) if one.run.goodput is not None else f"{value:,.0f} h"
    return f"> {text}" if bound else text


def _error(one: PlannedRun) -> str:
    return signed_percent(one.error) if one.run.goodput is None else f"{100 * one.error:+.1f} points"
