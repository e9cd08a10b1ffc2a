"""Options that several verbs share."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kernelcast.runtime.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

device_option = click.option(
    "--device", default="auto", show_default=True, help="cpu, cuda, or auto: the GPU where there is one."
)
threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Threads that one process computes with on a CPU.",
)
dtype_option = click.option(
    "--dtype", default="float32", show_default=True, help="float32, bfloat16 or float16."
)
plan_option = click.option(
    "--plan", default="quick", show_default=True, help="A plan that ships, or a TOML file like it."
)
operators_option = click.option(
    "--operator", "operators", multiple=True, help="Only this operator; may be given several times."
)
again_option = click.option(
    "--again",
    type=click.Choice(["all", "flagged"]),
    is_flag=False,
    flag_value="all",
    callback=lambda context, parameter, value: value or "no",
    help="Measure once more what the database already holds: all of it, or what was flagged as disturbed or unstable.",
)
processes_option = click.option(
    "--procs-per-node",
    "processes",
    default="1",
    show_default=True,
    metavar="N[,N...]",
    callback=lambda context, parameter, value: levels(value),
    help="Processes of this node that run an operator at once, one of which is measured; each number in turn.",
)
site_option = click.option("--site", default="", help="Your site's name, stored as free text.")


def levels(text: str) -> tuple[int, ...]:
    """Different whole numbers from 1, from `1,2`.

    Raises:
        UsageError: something else.
    """
    parts = [part.strip() for part in text.split(",")]
    numbers = tuple(int(part) for part in parts if part.isdecimal() and part.isascii() and len(part) < 6)
    if len(numbers) < len(parts) or min(numbers) < 1 or len(set(numbers)) < len(numbers):
        raise UsageError(
            f"--procs-per-node is {text!r}, expected different whole numbers from 1, such as 1,2"
        )
    return numbers


def database_option(help_text: str) -> Callable[[F], F]:
    """Make the required `--db FILE`."""
    return click.option(
        "--db",
        "database_path",
        required=True,
        type=click.Path(path_type=Path, dir_okay=False),
        help=help_text,
    )


class Finite(click.FloatRange):
    """A number in a range; unlike FloatRange it takes no nan, which compares with nothing, and no infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Raises BadParameter like its parent."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


size_gib = Finite(min=0, min_open=True, max=1e6)
"""GiB of a file or a memory."""

timeout = Finite(min=1, max=1e6)
"""Seconds; the most are eleven days."""

database_argument = click.argument(
    "database_path", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False)
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
max_size_option = click.option(
    "--max-size-gib",
    "max_size_bytes",
    type=size_gib,
    default=16.0,
    show_default=True,
    callback=lambda context, parameter, value: int(value * 2**30),
    help="Refuse databases that are larger.",
)
