"""The fields of a runs file, each with what it accepts: the layout's are those of `Parallelism`."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from kernelcast.runtime import ModelConfig, Parallelism, UsageError
from kernelcast.runtime.errors import shown
from kernelcast.runtime.estimate.estimate import Components
from kernelcast.runtime.request.fields import (
    DEGREES,
    LAYOUT,
    MAX_SIZE,
    renamed,
    require_integer,
    unknown_field,
)
from kernelcast.runtime.request.reading import read_layout
from kernelcast.runtime.step.partition import layers_of_chunks

DEFAULT_FIELDS = ("model", "sequence_length", *LAYOUT, "gpus_per_node", "bucket_entries")
"""What `[defaults]` may say: all that several runs can have in common."""
RUN_FIELDS = (
    "name",
    *DEFAULT_FIELDS,
    "measured_s",
    "measured_components",
    "published_error",
    "published_components",
)
COMPONENT_NAMES = tuple(Components(**dict.fromkeys((f.name for f in fields(Components)), 0.0)).to_dict())
"""Names of Table IX."""

_LONGEST_S = 1e9


def only_known(table: Mapping[str, Any], names: Collection[str], *, prefix: str = "") -> dict[str, Any]:
    """The table by the names that its fields have now; it has no other fields than `names`.

    Raises:
        UsageError: it has, or a field is given by two names.
    """
    found = renamed(table, LAYOUT)
    for name in found:
        if name not in names:
            raise UsageError(f"{prefix}{unknown_field(name, names)}")
    return found


def text(table: Mapping[str, Any], name: str) -> str:
    """A text on one line, required.

    Raises:
        UsageError: it is missing, empty, or no such text.
    """
    value = table.get(name)
    if type(value) is not str or not value.strip() or not value.isprintable():
        raise UsageError(f"{name} is {_found(table, name)}, expected a text on one line")
    return value


def whole(table: Mapping[str, Any], name: str, *, default: int | None = None) -> int:
    """A whole number from 1; `default` where it is missing.

    Raises:
        UsageError: it is not, or it is missing and has no default.
    """
    if name not in table and default is not None:
        return default
    value: Any = table.get(name)
    require_integer(name, value, low=1, high=MAX_SIZE)
    return int(value)


def seconds(table: Mapping[str, Any], name: str) -> float:
    """A time above 0, required.

    Raises:
        UsageError: it is missing or no such number.
    """
    value = _number(table.get(name))
    if value is None or not 0 < value <= _LONGEST_S:
        raise UsageError(f"{name} is {_found(table, name)}, expected seconds, a number above 0")
    return value


def relative_error(table: Mapping[str, Any], name: str) -> float | None:
    """An error as a fraction (-0.05: predicted 5 % too short), above -1; None where it is missing.

    Raises:
        UsageError: no such number.
    """
    if name not in table:
        return None
    value = _number(table[name])
    if value is None or not value > -1:
        raise UsageError(
            f"{name} is {shown(table[name])}, expected a fraction above -1 (-0.05: 5 % too short)"
        )
    return value


def component_errors(table: Mapping[str, Any], name: str) -> Mapping[str, float] | None:
    """Errors of components, as `relative_error`; None where the table is missing.

    Raises:
        UsageError: no table, an unknown component, or no such number.
    """
    return _components(table, name, relative_error)


def component_seconds(table: Mapping[str, Any], name: str) -> Mapping[str, float] | None:
    """Times of components, as `seconds`; None where the table is missing.

    Raises:
        UsageError: no table, an unknown component, or no such number.
    """
    return _components(table, name, seconds)


def layout_of(table: Mapping[str, Any], model: ModelConfig) -> Parallelism:
    """The layout that a run's fields say, checked against its model.

    Raises:
        UsageError: a field is missing or wrong, or `model` cannot be cut so.
    """
    needed = (*DEGREES, "micro_batch", "micro_batches")
    if missing := [name for name in needed if name not in table]:
        raise UsageError(f"{missing[0]} is missing, needed are {', '.join(needed)}")
    layout = read_layout(table)
    layout.check(model)
    layers_of_chunks(model.layers, layout)
    return layout


def _components(
    table: Mapping[str, Any], name: str, read: Callable[[Mapping[str, Any], str], float | None]
) -> Mapping[str, float] | None:
    if name not in table:
        return None
    found = table[name]
    if not isinstance(found, dict):
        raise UsageError(f"{name} is {shown(found)}, expected a table of components")
    only_known(found, COMPONENT_NAMES, prefix=f"{name}.")
    try:
        numbers = {component: read(found, component) for component in found}
    except UsageError as error:
        raise UsageError(f"{name}.{error}") from error
    return MappingProxyType({key: number for key, number in numbers.items() if number is not None})


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _found(table: Mapping[str, Any], name: str) -> str:
    return shown(table[name]) if name in table else "missing"
