"""`kernelcast stack list`."""

import math
from dataclasses import asdict

import click

from kernelcast.cli.options import json_option
from kernelcast.cli.tables import percent, text_table
from kernelcast.cli.terminal import print_json, say
from kernelcast.runtime.stack import NAMES, Stack, shipped_stacks, stack_named

_NORMAL_95 = 1.6448536269514722


@click.command("list", short_help="List the software stacks that ship.")
@json_option
def list_(as_json: bool) -> None:
    """List the software stacks that ship, with 90 % intervals of their factors and mean absolute errors.

    \b
    kernelcast stack list
    """
    found = [stack_named(name) for name in shipped_stacks()]
    if as_json:
        print_json([asdict(one) for one in found])
        return
    heads = (
        "name",
        "attention",
        "other computing",
        "exposed share",
        "residual",
        "steps",
        "before",
        "left out",
    )
    click.echo(text_table(heads, [_row(one) for one in found]))
    for one in found:
        say(f"\n{one.name}: {one.software}")


def _row(one: Stack) -> tuple[str, ...]:
    errors = (percent(error) for error in (one.error_before, one.error_left_out))
    return (
        one.name,
        *factor_texts(one),
        percent(one.residual),
        f"{one.steps or '-'}",
        *errors,
    )


def factor_texts(one: Stack) -> list[str]:
    """The factors, each with its 90 % interval where it has one."""
    return [
        _factor(
            getattr(one, name), one.log_covariance[index][index], 1.0 if name == "exposed_share" else math.inf
        )
        for index, name in enumerate(NAMES)
    ]


def _factor(value: float, log_variance: float, most: float) -> str:
    if not log_variance:
        return f"{value:.3f}"
    width = math.exp(_NORMAL_95 * math.sqrt(log_variance))
    return f"{value:.3f} ({value / width:.3f} to {min(most, value * width):.3f})"
