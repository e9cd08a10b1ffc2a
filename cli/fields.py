"""Options of the fields of a request and of a wish, and what they give: values, bundle, notes about the model."""

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from kernelcast.cli import completion, option
from kernelcast.cli.option import F, parse_size
from kernelcast.cli.terminal import is_quiet, warning
from kernelcast.runtime.bundle.file import Bundle, read_bundle
from kernelcast.runtime.catalogue import SCHEME, hardware_bundle, hardware_named
from kernelcast.runtime.errors import UsageError, shown
from kernelcast.runtime.intent.goals import RANK_BY, Wish
from kernelcast.runtime.request.field_types import FLAG, Field, FieldType, choice, number, option_name
from kernelcast.runtime.request.fields import (
    FIT_PROBABILITY,
    GPU_MEMORY,
    LAYOUT,
    MEMORY,
    REQUEST,
    STACK,
    WISHES,
    renamed,
)
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.model import FoundModel
from kernelcast.runtime.small_file import read_small_file

_MOST_LIST_BYTES = 1 << 24


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
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name in names and value is not None and value is not False:
            words += [parameter.opts[0]] if value is True else [parameter.opts[0], str(value)]
    return words


# Options that change nothing with these values of another field.
_IDLE_WITH: dict[str, tuple[str, tuple[object, ...]]] = {
    **dict.fromkeys(("sequence_parallel", "tensor_overlap"), ("tp", (1,))),
    "context_exchange": ("cp", (1,)),
    "expert_dispatcher": ("ep", (1,)),
    "overlap_parameters": ("zero", (0, 3)),
    "recompute_modules": ("recompute", ("none", "full")),
    **dict.fromkeys(("recompute_layers", "recompute_together"), ("recompute", ("none", "selective"))),
    "recompute_early_stop": ("recompute", ("none",)),
    "fp8_linears": ("fp8_recipe", ("none",)),
    **dict.fromkeys(("lora_linears", "lora_dropout"), ("lora_rank", (0,))),
    "offload_modules": ("offload_activations", (0,)),
    "host_memory_gb_per_s": ("offload_optimizer", (0,)),
}


def check_effect(options: Mapping[str, Any], layout: Parallelism, *, is_searched: bool) -> None:
    """Refuse (UsageError) options of the command line that change nothing in `layout`; a file may state them.

    Of a layout that a search found, what it chose itself makes no option wrong.
    """
    for name, (other, idle) in _IDLE_WITH.items():
        if is_searched and other not in STACK:
            continue
        value, with_value = options.get(name), getattr(layout, other)
        if value is not None and value != LAYOUT[name].default and with_value in idle:
            found = with_value if isinstance(with_value, str) else f"{with_value:g}"
            raise UsageError(f"{option_name(name)} has no effect with {option_name(other)} {found}")


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
                # `--rotary` alone is true; `--rotary false` overrides a stack or a file.
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
    return completion.OF_FIELD.get(field.name) or (completion.names(lambda: choices) if choices else None)


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

    `any_size` allows `--gpu-memory any`, which is None. UsageError for a field given by two of its names.
    """
    sizes = {field.name.removesuffix("_bytes"): field for field in MEMORY.values()}
    given = {name: value for name, value in fields.items() if value is not None}
    found: dict[str, Any] = {}
    for name, field in sizes.items():
        if (text := given.pop(name, None)) is not None:
            is_any = any_size and field is GPU_MEMORY and text == "any"
            least = 0 if field.kind.accepts(0) else 1
            found[field.name] = None if is_any else parse_size(text, name=option_name(name), least=least)
    return renamed(given, REQUEST) | found


def help_of(field: Field) -> str:
    """A field's help with its default."""
    default = field.otherwise if field.default is None else str(field.default)
    if isinstance(field.default, tuple):
        default = ",".join(map(str, field.default))
    return f"{field.help}  [default: {default}]" if default and field.kind is not FLAG else field.help


def check_one(first: str, given: object, second: str, also_given: object) -> None:
    """Require exactly one of two options, not None; else UsageError."""
    if (given is None) == (also_given is None):
        found = f"neither {first} nor {second} is" if given is None else f"{first} and {second} are both"
        raise UsageError(f"{found} given, expected one of them")


def chosen_bundle(bundle: str | None, hardware: str | None) -> str:
    """Path of the bundle, or `hardware:NAME`; UsageError unless one of both is given."""
    check_one("--bundle", bundle, "--hardware", hardware)
    return str(bundle) if hardware is None else SCHEME + hardware_named(hardware).name


def read_prior(prior: str) -> Bundle:
    """The bundle that `--prior` names; UsageError for unknown hardware, DataError for a file that cannot be read."""
    path = Path(prior)
    return read_bundle(path) if path.suffix == ".kcast" or path.exists() else hardware_bundle(prior)


def print_notes(found: FoundModel) -> None:
    """Print notes about how a model file was read; with --quiet only the one about the sequence length."""
    for note in found.all_notes[len(found.notes) :] if is_quiet() else found.all_notes:
        click.echo(warning(note), err=True)


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

    return option.text(
        "--rank-by",
        f"{help_text}  [default: step-time]",
        metavar=f"[{'|'.join(shown_values)}]",
        callback=read,
        shell_complete=completion.names(lambda: shown_values),
    )


def wish_options(function: F) -> F:
    """One option for each field of a wish; `take_wish` takes them out of the command's arguments."""
    function = rank_by_option(RANK_BY, "Criterion for comparing hardware.")(function)
    function = option.text(
        "--price", "Price of a device per hour, for all hardware or by name (NAME=PRICE,…).", metavar="PRICE"
    )(function)
    return field_options(*WISHES.values(), FIT_PROBABILITY)(function)


def take_wish(fields: dict[str, Any]) -> Wish:
    """Take the wish out of a command's arguments; UsageError for an invalid price, or an unknown device."""
    values = {name: fields.pop(name) for name in (*WISHES, "rank_by")}
    return Wish(**values, prices=_prices(fields.pop("price")))


def hardware_names(hardware: str | None) -> tuple[str, ...]:
    """The names of `--hardware`, each device once; UsageError for an unknown one."""
    parts = [] if hardware is None else hardware.split(",")
    return tuple(dict.fromkeys(hardware_named(part.strip()).name for part in parts))


def _prices(text: str | None) -> dict[str, float]:
    prices = {}
    for part in [] if text is None else text.split(","):
        name, _, amount = part.strip().rpartition("=")
        name = name and hardware_named(name).name
        price = _PRICE.read(amount)
        if not isinstance(price, float) or name in prices:
            raise UsageError(f"--price is {shown(text)}, expected {_PRICE.expected}")
        prices[name] = price
    return prices
