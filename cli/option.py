"""The options of commands: a constructor per kind of value, and the options that several commands share.

Constructors take the names as click does, then the help: `@option.path("--log", "log_path", "Read times from a log.")`.
"""

import re
from collections.abc import Callable, Collection
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from kernelcast.cli import completion
from kernelcast.cli.terminal import Shown, print_json, say
from kernelcast.runtime.errors import UsageError, one_line, shown
from kernelcast.runtime.hardware.devices import Load
from kernelcast.runtime.request.fields import OPTIONS

F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)


def text(*words: str, **more: Any) -> Callable[[F], F]:
    """An option with a text, or with what `more` says to click."""
    *names, help_text = words
    return click.option(*names, help=help_text, **more)


def flag(*words: str, **more: Any) -> Callable[[F], F]:
    return text(*words, is_flag=True, **more)


def several(*words: str, **more: Any) -> Callable[[F], F]:
    return text(*words, multiple=True, **more)


def path(*words: str, metavar: str = "FILE", **more: Any) -> Callable[[F], F]:
    return text(*words, metavar=metavar, type=PATH, **more)


def file(*words: str, **more: Any) -> Callable[[F], F]:
    """An option with the path of a file; folders are refused."""
    return text(*words, type=FILE, **more)


def count(*words: str, **more: Any) -> Callable[[F], F]:
    """An option with a whole number from 1."""
    return text(*words, type=click.IntRange(min=1), **more)


def choice(values: Collection[str], *words: str, **more: Any) -> Callable[[F], F]:
    return text(*words, type=click.Choice(tuple(values)), **more)


def time(*words: str, default_s: float | None = None, most: str = "10d") -> Callable[[F], F]:
    """An option with a time, converted to seconds; a number without a unit is in seconds."""
    name = words[0]

    def read(_context: click.Context, _parameter: click.Parameter, given: str | None) -> float | None:
        from kernelcast.walltime.durations import read_duration  # imported here: commands must start fast

        if given is None:
            return None
        time_s = read_duration(given.strip()) or 0.0
        if not 0 < time_s <= (read_duration(most) or 0.0):
            raise UsageError(
                f"{name} is {shown(given)}, expected a time up to {most} such as 30s, 5m or 0.5h"
            )
        return time_s

    default = None if default_s is None else f"{default_s:g}s"
    return text(*words, default=default, metavar="TIME", callback=read)


def size(*words: str, default: str | None = None) -> Callable[[F], F]:
    def read(_context: click.Context, _parameter: click.Parameter, given: str | None) -> int | None:
        return None if given is None else parse_size(given, name=words[0])

    return text(*words, default=default, metavar="SIZE", callback=read)


_UNITS = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_BYTES_OF = {unit.lower(): size_bytes for unit, size_bytes in _UNITS.items()}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)")


def parse_size(given: str, *, name: str, least: int = 1) -> int:
    """Bytes of a size with a unit, decimal (GB = 10⁹) or binary (GiB = 2³⁰), in upper or lower case.

    UsageError, which contains `name`, for other texts and for less than `least` bytes.
    """
    match = _SIZE.fullmatch(given.strip())
    if match is not None and not match[2]:
        units = ", ".join(_UNITS)
        raise UsageError(
            f"{name} is {given!r:.80} without a unit, expected one of {units}, as in {match[1]}GB"
        )
    factor = None if match is None else _BYTES_OF.get(match[2].lower())
    size_bytes = -1 if match is None or factor is None else int(float(match[1]) * factor)
    if size_bytes < least:
        raise UsageError(f"{name} is {given!r:.80}, expected a size such as 80GB or 40GiB")
    return size_bytes


def whole_numbers(
    given: str, name: str, most: int, expected: str, *, is_rising: bool = False
) -> tuple[int, ...]:
    """Different numbers from 1 to `most`, from `1,2`, smaller ones first where `is_rising`; else UsageError with
    `name` and what was `expected`.
    """
    parts = [part.strip() for part in given.split(",")]
    numbers = tuple(int(part) for part in parts if part.isdecimal() and part.isascii() and len(part) < 6)
    is_known = len(set(numbers)) == len(parts) and 1 <= min(numbers) <= max(numbers) <= most
    if not is_known or (is_rising and list(numbers) != sorted(numbers)):
        raise UsageError(f"{name} is {given!r:.40}, expected {expected}")
    return numbers


def json(command: Callable[..., Shown]) -> Callable[..., int]:
    """Make `--json`, which prints the document of a command's answer instead of showing it."""

    @flag("--json", "as_json", "Print JSON.")
    @wraps(command)
    def answered(*, as_json: bool, **options: Any) -> int:
        found = command(**options)
        if as_json:
            print_json(found.document() if callable(found.document) else found.document)
        else:
            found.show()
            if found.written is not None:
                say(f"{one_line(str(found.written))}: written")
        if found.error is not None:
            raise found.error
        return found.status

    return answered


_bundle_file = text("--bundle", "Bundle of regressors (.kcast).", metavar="FILE")
_hardware_name = text(
    "--hardware",
    "Device by name instead of a bundle: h100-sxm, mi300x, … (kernelcast hardware).",
    metavar="NAME",
    shell_complete=completion.hardware_names,
)


def bundle(function: F) -> F:
    """Make `--bundle FILE` and `--hardware NAME`, for `chosen_bundle`."""
    return _bundle_file(_hardware_name(function))


bundle_path = file("--bundle", "bundle_path", "Bundle of regressors (.kcast).", metavar="FILE", required=True)
runs_fabric = text(
    "--fabric",
    f"{OPTIONS['fabric'].help}  [default: the file's]",
    metavar="NAME|FILE",
    default="",
    shell_complete=completion.fabric_names,
)


def _model(*, required: bool, more: str = "") -> Callable[[F], F]:
    return text(
        "--model",
        "model_name",
        "Model: a built-in name such as llama-3.1-8b or meta-llama/Llama-3.1-8B (kernelcast models), a .toml or "
        f".json file, or a Hugging Face config.json{more}.",
        required=required,
        metavar="NAME|FILE",
        shell_complete=completion.model_names,
    )


model = _model(required=True)
model_or_default = _model(required=False, more="; default: the page's")
model_or_layout = _model(required=False, more="; default: the model of --layout")
no_calibration = flag("--no-calibration", "Ignore the bundle's calibration by measured steps.")
warnings = flag("--warnings", "lists_warnings", "List every warning.")
database_argument = click.argument("database_path", metavar="FILE", type=FILE)
max_size = size("--max-size", "max_size_bytes", "Refuse larger databases.", default="16GiB")


def fingerprint(what: str, help_text: str) -> Callable[[F], F]:
    """Make `--hardware-id` and the like: the start of a fingerprint's id."""
    return text(f"--{what}-id", what, help_text, metavar="ID", default="")


def database(help_text: str) -> Callable[[F], F]:
    """Make the required `--db FILE`."""
    return file("--db", "database_path", help_text, required=True)


device = text("--device", "cpu, cuda, or auto: the GPU if available.", default="auto", metavar="NAME")
threads = count("--threads", "CPU threads per process.", default=1)
dtype = text("--dtype", "float32, bfloat16 or float16.", default="float32", metavar="NAME")
plan = text("--plan", "Name of a plan that ships, or a TOML file.", default="quick", metavar="NAME|FILE")
operators = several(
    "--operator",
    "operators",
    "Only this operator; repeatable.",
    metavar="NAME",
    shell_complete=completion.operator_names,
)
again = choice(
    ("all", "flagged"),
    "--again",
    "Measure points again that the database already holds: all, or those flagged as disturbed or unstable.",
    is_flag=False,
    flag_value="all",
    callback=lambda context, parameter, value: value or "no",
)
processes = text(
    "--procs-per-node",
    "processes",
    "Processes that run an operator concurrently on this node; one is timed. Several numbers are measured in turn.",
    default="1",
    metavar="N[,N...]",
    callback=lambda context, parameter, value: whole_numbers(
        value, "--procs-per-node", 99_999, "different whole numbers from 1, such as 1,2"
    ),
)
load = choice(
    (Load.BURST.value, Load.SUSTAINED.value),
    "--load",
    "Load of the device: burst, a few repetitions, or sustained, at the clocks reached after seconds of work.  "
    "[default: the plan's, else burst]",
    callback=lambda context, parameter, value: None if value is None else Load(value),
)


def measured(command: F) -> F:
    """Where operators are measured, how, and which."""
    for one in (operators, load, processes, threads, dtype, device):  # help lists the last one first
        command = one(command)
    return command


prior = text(
    "--prior",
    "Start from the regressors of another device, by name (kernelcast hardware) or as a bundle (.kcast); points "
    "measured here correct them.",
    metavar="NAME|FILE",
    shell_complete=completion.hardware_or_bundle,
)
site = text("--site", "Name of your site, as free text.", default="")
