"""Options of `kernelcast predict` that leave the layout open, and the goal they describe."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from kernelcast.cli import completion
from kernelcast.cli.options import F, field_options
from kernelcast.runtime.catalogue.hardware import hardware_named
from kernelcast.runtime.errors import UsageError, shown
from kernelcast.runtime.intent.goals import RANK_BY, Wish
from kernelcast.runtime.request.field_types import choice, number
from kernelcast.runtime.request.fields import FIT_PROBABILITY, WISHES

_PRICE = number(0, 1e9, "a price of a device for one hour, such as 2.50, or a100-sxm=1.5,gh200=3")


_STEP_TIME = {"step-time", "time"}


def rank_by_option(values: Sequence[str], help_text: str) -> Callable[[F], F]:
    """`--rank-by` of `values`; the first, the default, is the step time, given as step-time or time."""
    first, *others = values
    shown_values = ("step-time", *others)

    def read(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
        if text is not None and text not in (*_STEP_TIME, *others):
            raise UsageError(f"--rank-by is {shown(text)}, expected {choice(shown_values).expected}")
        return first if text in _STEP_TIME else text

    return click.option(
        "--rank-by",
        metavar=f"[{'|'.join(shown_values)}]",
        callback=read,
        shell_complete=completion.values(shown_values),
        help=f"{help_text}  [default: step-time]",
    )


def wish_options(function: F) -> F:
    """One option for each field of a wish; `take_wish` takes them out of the command's arguments."""
    function = rank_by_option(RANK_BY, "Criterion for comparing hardware.")(function)
    function = click.option(
        "--price",
        metavar="PRICE",
        help="Price of a device per hour, for all hardware or by name (NAME=PRICE,…).",
    )(function)
    return field_options(*WISHES.values(), FIT_PROBABILITY)(function)


def take_wish(fields: dict[str, Any]) -> Wish:
    """Take the wish out of a command's arguments.

    Raises:
        UsageError: a price is not a number, or its device is unknown.
    """
    values = {name: fields.pop(name) for name in (*WISHES, "rank_by")}
    return Wish(**values, prices=_prices(fields.pop("price")))


def hardware_names(hardware: str | None) -> tuple[str, ...]:
    """The names of `--hardware`, each device once.

    Raises:
        UsageError: a device is unknown.
    """
    parts = [] if hardware is None else hardware.split(",")
    return tuple(dict.fromkeys(hardware_named(part.strip()).name for part in parts))


def _prices(text: str | None) -> dict[str, float]:
    prices = {}
    for part in [] if text is None else text.split(","):
        name, _, amount = part.strip().rpartition("=")
        name = name and hardware_named(name).name
        price = _PRICE.read(amount)
        if not isinstance(price, float) or name in prices:
            raise UsageError(f"price is {shown(text)}, expected {_PRICE.expected}")
        prices[name] = price
    return prices
