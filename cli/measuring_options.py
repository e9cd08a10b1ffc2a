"""Options of commands that measure."""

import click

from kernelcast.cli import completion
from kernelcast.cli.options import count_option
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.load import Load

device_option = click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="NAME",
    help="cpu, cuda, or auto: the GPU where there is one.",
)
threads_option = count_option("--threads", 1, "Threads that one process computes with on a CPU.")
dtype_option = click.option(
    "--dtype", default="float32", show_default=True, metavar="NAME", help="float32, bfloat16 or float16."
)
plan_option = click.option(
    "--plan",
    default="quick",
    show_default=True,
    metavar="NAME|FILE",
    help="A plan that ships, or a TOML file like it.",
)
operators_option = click.option(
    "--operator",
    "operators",
    multiple=True,
    metavar="NAME",
    shell_complete=completion.operator_names,
    help="Only this operator; may be given several times.",
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
load_option = click.option(
    "--load",
    type=click.Choice([Load.BURST.value, Load.SUSTAINED.value]),
    callback=lambda context, parameter, value: None if value is None else Load(value),
    help="Of the device: some repetitions in a burst, or sustained, at its clocks after seconds of full work.  "
    "[default: the plan's, else burst]",
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
