"""Options that several verbs share."""

import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import click

from kernelcast.cli import completion
from kernelcast.cli.sizes import parse_size
from kernelcast.cli.terminal import is_quiet, warning
from kernelcast.runtime.catalogue.composition import SCHEME
from kernelcast.runtime.catalogue.hardware import hardware_named
from kernelcast.runtime.errors import UsageError, shown
from kernelcast.runtime.hardware.load import Load
from kernelcast.runtime.request.fields import GPU_MEMORY, MEMORY, Field, option_name
from kernelcast.runtime.request.kinds import FLAG, Kind
from kernelcast.runtime.request.models import FoundModel
from kernelcast.runtime.small_file import read_small_file

_MOST_LIST_BYTES = 1 << 24

F = TypeVar("F", bound=Callable[..., Any])


class RenamedOption(click.Option):
    """An option that is still accepted by its `old` names, which its help does not show.

    `rewritten` makes a value of what an old name is given, where that was written in another way.
    """

    def __init__(
        self,
        *arguments: Any,
        old: Collection[str] = (),
        rewritten: Callable[[str], str] = str,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.old, self.rewritten = tuple(old), rewritten

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser know every name; an old one has a destination of its own."""
        super().add_to_parser(parser, ctx)
        for name in self.old:
            if self.is_flag:
                parser.add_option(obj=self, opts=[name], dest=name, action="store_const", const=True)
            else:
                action = "append" if self.multiple else "store"
                parser.add_option(obj=self, opts=[name], dest=name, action=action, nargs=self.nargs)

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Take the value of whichever name is given.

        Raises:
            UsageError: two of its names are given.
        """
        given = [name for name in (self.name or "", *self.old) if name in opts]
        if len(given) > 1:
            raise UsageError(f"{self.opts[0]} and {given[-1]} are both given, expected only {self.opts[0]}")
        if given:
            value = opts[given[0]]
            if given[0] in self.old and isinstance(value, str):
                value = self.rewritten(value)
            opts = {**opts, self.name or "": value}
        return super().handle_parse_result(ctx, opts, args)


def _reading(kind: Kind) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """Reads an option's text as that field of a request is read."""

    def read(_context: click.Context, parameter: click.Parameter, text: str | None) -> Any:
        if text is None:
            return None
        is_file = kind.is_list and kind.read(text) is None and os.path.exists(text)
        value = kind.read(_listed(text) if is_file else text)
        if value is None:
            expected = f"{kind.expected}, or a file of them" if kind.is_list else kind.expected
            raise UsageError(f"{parameter.opts[0]} is {shown(text)}, expected {expected}")
        return value

    return read


def _listed(path: str) -> str:
    """The numbers in a file, between spaces, commas, line ends and a list's brackets, as one list with commas."""
    content = read_small_file(Path(path), where=path, most_bytes=_MOST_LIST_BYTES)
    return re.sub(r"[\s,\[\]]+", ",", content.decode("utf-8", "replace")).strip(",")


def given_words(*names: str) -> list[str]:
    """Options of the command that runs, and their values, as far as they are given."""
    context = click.get_current_context()
    words = []
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if option.name in names and value is not None and value is not False:
            words += [option.opts[0]] if value is True else [option.opts[0], str(value)]
    return words


_METAVARS = {"bundle": "FILE", "hardware": "NAME", "price": "PRICE"}
_METAVARS |= dict.fromkeys(("model", "fabric", "stack"), "NAME|FILE")


def field_options(
    *fields: Field,
    as_text: bool = False,
    required: Collection[str] = (),
    old: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[F], F]:
    """One option for each field of a request, None where it is not given.

    `as_text`: texts are not parsed; `old` are former options of this command only.
    """

    def decorated(function: F) -> F:
        for field in reversed(fields):
            names = [option_name(name) for name in field.old]
            metavar = field.unit.upper() or _METAVARS.get(field.name, field.kind.metavar)
            more: dict[str, Any] = {"metavar": metavar}
            if field.kind is FLAG:
                # `--rotary` alone is true; `--rotary false` takes back what a stack or a file says.
                more |= {"is_flag": False, "flag_value": "true"}
            if not as_text:
                more |= {"callback": _reading(field.kind)}
            function = click.option(
                option_name(field.name),
                field.name,
                cls=RenamedOption,
                old=[*names, *([old[field.name]] if field.name in old else [])],
                required=field.name in required,
                help=help_of(field),
                shell_complete=_completion(field),
                **more,
            )(function)
        return function

    return decorated


def _completion(field: Field) -> completion.Complete | None:
    choices = field.kind.schema.get("enum")
    return completion.OF_FIELD.get(field.name) or (completion.values(choices) if choices else None)


def memory_options(*, any_size: bool = False) -> Callable[[F], F]:
    """Options of a device's memory, which `take_memory` takes out of a command's arguments."""

    def decorated(function: F) -> F:
        for field in reversed(tuple(MEMORY.values())):
            name = field.name.removesuffix("_bytes")
            text = help_of(field)
            if field is GPU_MEMORY:
                sizes = "80GB, 40GiB, or any" if any_size else "80GB or 40GiB"
                text = text.replace(field.help, f"{field.help.removesuffix('.')}: {sizes}.")
            function = click.option(option_name(name), name, metavar="SIZE", help=text)(function)
        return function

    return decorated


def take_memory(fields: dict[str, Any], *, any_size: bool = False) -> dict[str, int | None]:
    """The sizes of `memory_options` that are given, by field name; None for `any`, which `any_size` allows.

    Raises:
        UsageError: one is no size.
    """
    found: dict[str, int | None] = {}
    for field in MEMORY.values():
        name = field.name.removesuffix("_bytes")
        text = fields.pop(name)
        if text is not None:
            least = 0 if field.kind.accepts(0) else 1
            is_any = any_size and field is GPU_MEMORY and text == "any"
            found[field.name] = None if is_any else parse_size(text, name=name, least=least)
    return found


def help_of(field: Field) -> str:
    """A field's help with its default."""
    default = field.otherwise if field.default is None else str(field.default)
    if isinstance(field.default, tuple):
        default = ",".join(map(str, field.default))
    return f"{field.help}  [default: {default}]" if default and field.kind is not FLAG else field.help


_bundle_file = click.option("--bundle", metavar="FILE", help="Bundle of regressors (.kcast).")
_hardware_name = click.option(
    "--hardware",
    metavar="NAME",
    help="Or a device by name: h100-sxm, mi300x, … (kernelcast hardware).",
    shell_complete=completion.hardware_names,
)


def bundle_option(function: F) -> F:
    """Make `--bundle FILE` and `--hardware NAME`; `chosen_bundle` takes the one that is given."""
    return _bundle_file(_hardware_name(function))


def chosen_bundle(bundle: str | None, hardware: str | None) -> str:
    """Path of the bundle that is meant, or `hardware:NAME`.

    Raises:
        UsageError: neither or both are given, or the hardware is unknown.
    """
    if (bundle is None) == (hardware is None):
        given = "neither" if bundle is None else "both"
        raise UsageError(f"{given} of --bundle and --hardware given, expected one of them")
    return str(bundle) if hardware is None else SCHEME + hardware_named(hardware).name


model_option = click.option(
    "--model",
    "model_name",
    required=True,
    metavar="NAME|FILE",
    shell_complete=completion.model_names,
    help="Model: a built-in name such as llama-3.1-8b or meta-llama/Llama-3.1-8B (kernelcast models lists them), a "
    ".toml or .json file, or a Hugging Face config.json.",
)


def print_notes(found: FoundModel) -> None:
    """What there is to say about how a model's file was read."""
    for note in () if is_quiet() else found.all_notes:
        click.echo(warning(note), err=True)


no_calibration_option = click.option(
    "--no-calibration", is_flag=True, help="Leave out the bundle's correction by measured steps."
)


def id_option(what: str, help_text: str) -> Callable[[F], F]:
    """Make `--hardware-id` and the like: the start of a fingerprint's id."""
    return click.option(
        f"--{what}-id", what, cls=RenamedOption, old=[f"--{what}"], metavar="ID", default="", help=help_text
    )


device_option = click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="NAME",
    help="cpu, cuda, or auto: the GPU where there is one.",
)
threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Threads that one process computes with on a CPU.",
)
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


def database_option(help_text: str) -> Callable[[F], F]:
    """Make the required `--db FILE`."""
    return click.option(
        "--db",
        "database_path",
        required=True,
        type=click.Path(path_type=Path, dir_okay=False),
        help=help_text,
    )


def time_option(
    name: str, variable: str, default_s: float | None, help_text: str, *, most: str = "10d"
) -> Callable[[F], F]:
    """An option whose value is a time with a unit, in seconds; a number without one is seconds."""

    def read(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
        from kernelcast.walltime.durations import read_duration  # only here: commands must start fast

        if text is None:
            return None
        time_s = read_duration(text.strip()) or 0.0
        if not 0 < time_s <= (read_duration(most) or 0.0):
            raise UsageError(f"{name} is {shown(text)}, expected a time up to {most} such as 30s, 5m or 0.5h")
        return time_s

    return click.option(
        name,
        variable,
        default=None if default_s is None else f"{default_s:g}s",
        show_default=default_s is not None,
        metavar="TIME",
        callback=read,
        help=help_text,
    )


database_argument = click.argument(
    "database_path", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False)
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
warnings_option = click.option("--warnings", "lists_warnings", is_flag=True, help="List every warning.")


def size_option(
    name: str, variable: str, default: str | None, help_text: str, *, old: str = ""
) -> Callable[[F], F]:
    """An option whose value is a size with a unit, in bytes; an `old` name takes GiB."""
    return click.option(
        name,
        variable,
        cls=RenamedOption,
        old=[old] if old else [],
        rewritten=lambda text: f"{text}GiB",
        default=default,
        show_default=default is not None,
        metavar="SIZE",
        callback=lambda context, parameter, text: None if text is None else parse_size(text, name=name),
        help=help_text,
    )


max_size_option = size_option(
    "--max-size", "max_size_bytes", "16GiB", "Refuse databases that are larger.", old="--max-size-gib"
)
