"""Options of commands that measure, and the prior that a few measurements correct."""

from pathlib import Path

import click

from kernelcast.cli import completion
from kernelcast.cli.options import count_option
from kernelcast.runtime.bundle.file import Bundle, read_bundle
from kernelcast.runtime.catalogue.composition import hardware_bundle
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.load import Load

device_option = click.option(
    "--device",
    default="auto",
    metavar="NAME",
    help="cpu, cuda, or auto: the GPU if available.",
)
threads_option = count_option("--threads", 1, "CPU threads per process.")
dtype_option = click.option(
    "--dtype", default="float32", metavar="NAME", help="float32, bfloat16 or float16."
)
plan_option = click.option(
    "--plan",
    default="quick",
    metavar="NAME|FILE",
    help="Name of a plan that ships, or a TOML file.",
)
operators_option = click.option(
    "--operator",
    "operators",
    multiple=True,
    metavar="NAME",
    shell_complete=completion.operator_names,
    help="Only this operator; repeatable.",
)
again_option = click.option(
    "--again",
    type=click.Choice(["all", "flagged"]),
    is_flag=False,
    flag_value="all",
    callback=lambda context, parameter, value: value or "no",
    help="Measure points again that the database already holds: all, or those flagged as disturbed or unstable.",
)
processes_option = click.option(
    "--procs-per-node",
    "processes",
    default="1",
    metavar="N[,N...]",
    callback=lambda context, parameter, value: whole_numbers(
        value, "--procs-per-node", 99_999, "different whole numbers from 1, such as 1,2"
    ),
    help="Number of processes that run an operator at once on this node; one is measured. Several numbers in turn.",
)
load_option = click.option(
    "--load",
    type=click.Choice([Load.BURST.value, Load.SUSTAINED.value]),
    callback=lambda context, parameter, value: None if value is None else Load(value),
    help="Load of the device: burst, a few repetitions, or sustained, at the clocks reached after seconds of work.  "
    "[default: the plan's, else burst]",
)
prior_option = click.option(
    "--prior",
    metavar="NAME|FILE",
    shell_complete=completion.hardware_or_bundle,
    help="Another device, by name (kernelcast hardware) or as a bundle (.kcast), whose regressors the points measured "
    "here correct.",
)
site_option = click.option("--site", default="", help="Name of your site, as free text.")


def whole_numbers(
    text: str, option: str, most: int, expected: str, *, is_rising: bool = False
) -> tuple[int, ...]:
    """Different numbers from 1 to `most`, from `1,2`, smaller ones first where `is_rising`.

    Raises:
        UsageError: anything else; names the option and what was expected.
    """
    parts = [part.strip() for part in text.split(",")]
    numbers = tuple(int(part) for part in parts if part.isdecimal() and part.isascii() and len(part) < 6)
    is_known = len(set(numbers)) == len(parts) and 1 <= min(numbers) <= max(numbers) <= most
    if not is_known or (is_rising and list(numbers) != sorted(numbers)):
        raise UsageError(f"{option} is {text!r:.40}, expected {expected}")
    return numbers


def read_prior(prior: str) -> Bundle:
    """The bundle that `--prior` names.

    Raises:
        UsageError: the hardware is unknown.
        DataError: the file is missing, damaged or of another version.
    """
    path = Path(prior)
    return read_bundle(path) if path.suffix == ".kcast" or path.exists() else hardware_bundle(prior)
