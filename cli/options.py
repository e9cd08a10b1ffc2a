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
from kernelcast.runtime.request.field_types import FLAG, FieldType
from kernelcast.runtime.request.fields import GPU_MEMORY, MEMORY, OPTIONS, Field, option_name
from kernelcast.runtime.request.models import FoundModel
from kernelcast.runtime.small_file import read_small_file

_MOST_LIST_BYTES = 1 << 24

F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)


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


def _reading(kind: FieldType) -> Callable[[click.Context, click.Parameter, str | None], Any]:
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


def check_one(first: str, given: object, second: str, also_given: object) -> None:
    """Refuse both or neither of what a command can be given.

    Raises:
        UsageError: both or neither are given (not None).
    """
    if (given is None) == (also_given is None):
        found = "neither" if given is None else "both"
        raise UsageError(f"{found} of {first} and {second} given, expected one of them")


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
    check_one("--bundle", bundle, "--hardware", hardware)
    return str(bundle) if hardware is None else SCHEME + hardware_named(hardware).name


bundle_path_option = click.option(
    "--bundle", "bundle_path", metavar="FILE", required=True, type=FILE, help="Bundle of regressors (.kcast)."
)
runs_fabric_option = click.option(
    "--fabric",
    metavar="NAME|FILE",
    default="",
    shell_complete=completion.fabric_names,
    help=f"{OPTIONS['fabric'].help}  [default: the file's]",
)
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


def count_option(name: str, default: int, help_text: str) -> Callable[[F], F]:
    """An option whose value is a whole number from 1."""
    return click.option(name, type=click.IntRange(min=1), default=default, show_default=True, help=help_text)


def database_option(help_text: str) -> Callable[[F], F]:
    """Make the required `--db FILE`."""
    return click.option(
        "--db",
        "database_path",
        required=True,
        type=FILE,
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


database_argument = click.argument("database_path", metavar="FILE", type=FILE)
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
