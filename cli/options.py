"""Options shared by several verbs, and the `--json` form of answers."""

import os
import re
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from kernelcast.cli import completion
from kernelcast.cli.terminal import is_quiet, print_json, warning
from kernelcast.runtime.catalogue.composition import SCHEME
from kernelcast.runtime.catalogue.hardware import hardware_named
from kernelcast.runtime.errors import KernelcastError, UsageError, shown
from kernelcast.runtime.request.field_types import FLAG, Field, FieldType, option_name
from kernelcast.runtime.request.fields import (
    GPU_MEMORY,
    MEMORY,
    OPTIONS,
    REQUEST,
    renamed,
)
from kernelcast.runtime.request.models import FoundModel
from kernelcast.runtime.small_file import read_small_file

_MOST_LIST_BYTES = 1 << 24

F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)


class Shown(NamedTuple):
    """The answer of a command: a document for programs or what makes it, what prints it for people, status or error."""

    document: object
    show: Callable[[], object]
    status: int = 0
    error: KernelcastError | None = None


def json_option(command: Callable[..., Shown]) -> Callable[..., int]:
    """Make `--json`, which prints the document of a command's answer instead of showing it."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @wraps(command)
    def answered(*, as_json: bool, **options: Any) -> int:
        found = command(**options)
        if as_json:
            print_json(found.document() if callable(found.document) else found.document)
        else:
            found.show()
        if found.error is not None:
            raise found.error
        return found.status

    return answered


def _reading(kind: FieldType) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """Reads an option's text as a request field of this type."""

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
    """The numbers in a file, separated by spaces, commas, line ends or brackets, joined by commas."""
    content = read_small_file(Path(path), where=path, most_bytes=_MOST_LIST_BYTES)
    return re.sub(r"[\s,\[\]]+", ",", content.decode("utf-8", "replace")).strip(",")


def given_words(*names: str) -> list[str]:
    """Options of the running command that are given, with their values."""
    context = click.get_current_context()
    words = []
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if option.name in names and value is not None and value is not False:
            words += [option.opts[0]] if value is True else [option.opts[0], str(value)]
    return words


_METAVARS = {"bundle": "FILE", "hardware": "NAME", "price": "PRICE"}
_METAVARS |= dict.fromkeys(("model", "fabric", "stack"), "NAME|FILE")


def field_options(*fields: Field, as_text: bool = False, required: Collection[str] = ()) -> Callable[[F], F]:
    """One option for each field of a request, None where it is not given; texts are not parsed if `as_text`.

    The paper's names of fields are options that no help shows; `given_fields` brings them to the present ones.
    """

    def decorated(function: F) -> F:
        for field in reversed(fields):
            more: dict[str, Any] = {
                "metavar": field.unit.upper() or _METAVARS.get(field.name, field.kind.metavar)
            }
            if field.kind is FLAG:
                # `--rotary` alone is true; `--rotary false` takes back what a stack or a file says.
                more |= {"is_flag": False, "flag_value": "true"}
            if not as_text:
                more |= {"callback": _reading(field.kind)}
            for name in field.old:
                function = click.option(option_name(name), name, hidden=True, **more)(function)
            function = click.option(
                option_name(field.name),
                field.name,
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
    """Options of a device's memory, which `given_fields` reads."""

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


def given_fields(fields: Mapping[str, Any], *, any_size: bool = False) -> dict[str, Any]:
    """The fields of a request that options give, by their present names; memory in bytes.

    `any_size` allows `--gpu-memory any`, which is None.

    Raises:
        UsageError: a field is given by two of its names, or a memory is no size.
    """
    sizes = {field.name.removesuffix("_bytes"): field for field in MEMORY.values()}
    given = {name: value for name, value in fields.items() if value is not None}
    found: dict[str, Any] = {}
    for name, field in sizes.items():
        if (text := given.pop(name, None)) is not None:
            is_any = any_size and field is GPU_MEMORY and text == "any"
            least = 0 if field.kind.accepts(0) else 1
            found[field.name] = None if is_any else parse_size(text, name=name, least=least)
    return renamed(given, REQUEST) | found


def help_of(field: Field) -> str:
    """A field's help with its default."""
    default = field.otherwise if field.default is None else str(field.default)
    if isinstance(field.default, tuple):
        default = ",".join(map(str, field.default))
    return f"{field.help}  [default: {default}]" if default and field.kind is not FLAG else field.help


def check_one(first: str, given: object, second: str, also_given: object) -> None:
    """Require exactly one of two options.

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
    help="Device by name instead of a bundle: h100-sxm, mi300x, … (kernelcast hardware).",
    shell_complete=completion.hardware_names,
)


def bundle_option(function: F) -> F:
    """Make `--bundle FILE` and `--hardware NAME`, for `chosen_bundle`."""
    return _bundle_file(_hardware_name(function))


def chosen_bundle(bundle: str | None, hardware: str | None) -> str:
    """Path of the bundle, or `hardware:NAME`.

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


def _model_option(*, required: bool, more: str = "") -> Callable[[F], F]:
    return click.option(
        "--model",
        "model_name",
        required=required,
        metavar="NAME|FILE",
        shell_complete=completion.model_names,
        help="Model: a built-in name such as llama-3.1-8b or meta-llama/Llama-3.1-8B (kernelcast models), a .toml or "
        f".json file, or a Hugging Face config.json{more}.",
    )


model_option = _model_option(required=True)
model_or_layout_option = _model_option(required=False, more="; default: the model in Megatron-LM's --layout")


def print_notes(found: FoundModel) -> None:
    """Print notes about how a model file was read; with --quiet only the one about the sequence length."""
    for note in found.all_notes[len(found.notes) :] if is_quiet() else found.all_notes:
        click.echo(warning(note), err=True)


no_calibration_option = click.option(
    "--no-calibration", is_flag=True, help="Ignore the bundle's calibration by measured steps."
)


def id_option(what: str, help_text: str) -> Callable[[F], F]:
    """Make `--hardware-id` and the like: the start of a fingerprint's id."""
    return click.option(f"--{what}-id", what, metavar="ID", default="", help=help_text)


def count_option(name: str, default: int, help_text: str) -> Callable[[F], F]:
    """An option with a whole number from 1."""
    return click.option(name, type=click.IntRange(min=1), default=default, help=help_text)


def database_option(help_text: str) -> Callable[[F], F]:
    """Make the required `--db FILE`."""
    return click.option("--db", "database_path", required=True, type=FILE, help=help_text)


def time_option(
    name: str, variable: str, default_s: float | None, help_text: str, *, most: str = "10d"
) -> Callable[[F], F]:
    """An option with a time, converted to seconds; a number without a unit is in seconds."""

    def read(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
        from kernelcast.walltime.durations import read_duration  # imported here: commands must start fast

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
        metavar="TIME",
        callback=read,
        help=help_text,
    )


database_argument = click.argument("database_path", metavar="FILE", type=FILE)
warnings_option = click.option("--warnings", "lists_warnings", is_flag=True, help="List every warning.")


def size_option(name: str, variable: str, default: str | None, help_text: str) -> Callable[[F], F]:
    """An option with a size, converted to bytes."""
    return click.option(
        name,
        variable,
        default=default,
        metavar="SIZE",
        callback=lambda context, parameter, text: None if text is None else parse_size(text, name=name),
        help=help_text,
    )


max_size_option = size_option("--max-size", "max_size_bytes", "16GiB", "Refuse larger databases.")

_UNITS = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_BYTES_OF = {unit.lower(): size_bytes for unit, size_bytes in _UNITS.items()}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)")


def parse_size(text: str, *, name: str, least: int = 1) -> int:
    """Bytes of a size with a unit, decimal (GB = 10⁹) or binary (GiB = 2³⁰), in upper or lower case.

    Raises:
        UsageError: it is no size, has no unit, or is less than `least` bytes; the message contains `name`.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is not None and not match[2]:
        units = ", ".join(_UNITS)
        raise UsageError(
            f"{name} is {text!r:.80} without a unit, expected one of {units}, as in {match[1]}GB"
        )
    factor = None if match is None else _BYTES_OF.get(match[2].lower())
    size_bytes = -1 if match is None or factor is None else int(float(match[1]) * factor)
    if size_bytes < least:
        raise UsageError(f"{name} is {text!r:.80}, expected a size such as 80GB or 40GiB")
    return size_bytes
