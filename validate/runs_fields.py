"""The fields of a runs file: a request's (runtime/request/fields.py), and what was measured."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from kernelcast.runtime import ModelConfig, UsageError
from kernelcast.runtime.errors import shown
from kernelcast.runtime.estimate.estimate import Components
from kernelcast.runtime.request.field_types import FieldType, number
from kernelcast.runtime.request.field_types import text as text_kind
from kernelcast.runtime.request.fields import LAYOUT, renamed
from kernelcast.runtime.request.reading import read_request
from kernelcast.runtime.spelling import unknown_field
from kernelcast.runtime.step.partition import layers_of_chunks

_NEEDED = ("pp", "tp", "dp", "micro_batch", "micro_batches")
"""What a run cannot leave to defaults."""
DEFAULT_FIELDS = ("model", "sequence_length", *LAYOUT, "gpus_per_node", "bucket_entries")
"""Fields of `[defaults]`: those that several runs can share."""
RUN_FIELDS = (
    "name",
    *DEFAULT_FIELDS,
    "measured_s",
    "mean_s",
    "measured_components",
    "memory_gib",
    "published_error",
    "published_components",
    "flag",
)
COMPONENT_NAMES = tuple(Components(**dict.fromkeys((f.name for f in fields(Components)), 0.0)).to_dict())
"""Names of Table IX."""

_TEXT = text_kind("a text on one line", one_line=True)
SECONDS = number(0, 1e9, "seconds, a number above 0", above=True)
GIB = number(0, 1e6, "GiB, a number above 0", above=True)
RELATIVE_ERROR = number(-1, 1e9, "a fraction above -1 (-0.05: 5 % too short)", above=True)


def only_known(table: Mapping[str, Any], names: Collection[str], *, path: str = "") -> dict[str, Any]:
    """The table by the names that its fields have now; it has no other fields than `names`.

    Raises:
        UsageError: it has, or a field is given by two names.
    """
    found = renamed(table, LAYOUT)
    for name in found:
        if name not in names:
            raise unknown_field(name, names, path=path)
    return found


def runs_and_defaults(
    document: Mapping[str, Any], names: Collection[str]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The tables `[[runs]]`, at least one, and `[defaults]`, which has no other fields than `names`.

    Raises:
        UsageError: one is missing or no such table, or a default is unknown.
    """
    runs, defaults = document.get("runs", []), document.get("defaults", {})
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) for run in runs):
        found = shown(runs) if "runs" in document else "missing"
        raise UsageError(f"runs is {found}, expected at least one table [[runs]]")
    if not isinstance(defaults, dict):
        raise UsageError(f"defaults is {shown(defaults)}, expected a table [defaults]")
    return runs, only_known(defaults, names, path="defaults.")


def text(table: Mapping[str, Any], name: str) -> str:
    """A text on one line, required.

    Raises:
        UsageError: it is missing, empty, or no such text.
    """
    _require(table, name, _TEXT.expected)
    _TEXT.check(name, table[name])
    return str(table[name])


def number_of(table: Mapping[str, Any], name: str, kind: FieldType) -> float:
    """A number, required.

    Raises:
        UsageError: it is missing or not accepted.
    """
    _require(table, name, kind.expected)
    kind.check(name, table[name])
    return float(table[name])


def memory_of(table: Mapping[str, Any], stages: int) -> tuple[float, ...] | None:
    """`memory_gib`: of the fullest device, or a list of the fullest device of every stage; None where it is missing.

    Raises:
        UsageError: no number that is accepted, or not one per stage.
    """
    found = table.get("memory_gib")
    if not isinstance(found, list):
        return None if found is None else (number_of(table, "memory_gib", GIB),)
    if len(found) != stages:
        raise UsageError(
            f"memory_gib is {shown(found)}, expected a number, or one per stage, {stages} in all"
        )
    return tuple(number_of({f"memory_gib[{i}]": one}, f"memory_gib[{i}]", GIB) for i, one in enumerate(found))


def components(table: Mapping[str, Any], name: str, kind: FieldType) -> Mapping[str, float] | None:
    """Numbers of components; None where the table is missing.

    Raises:
        UsageError: no table, an unknown component, or a number that is not accepted.
    """
    if name not in table:
        return None
    found = table[name]
    if not isinstance(found, dict):
        raise UsageError(f"{name} is {shown(found)}, expected a table of components")
    only_known(found, COMPONENT_NAMES, path=f"{name}.")
    try:
        return MappingProxyType({component: number_of(found, component, kind) for component in found})
    except UsageError as error:
        raise UsageError(f"{name}.{error}") from error


def request_of(table: Mapping[str, Any], model: ModelConfig) -> dict[str, Any]:
    """The arguments of `Estimator.predict` except the model, checked against it; a run gives its whole layout.

    Raises:
        UsageError: a field is missing or wrong, or `model` cannot be cut that way.
    """
    for name in _NEEDED:
        _require(table, name, LAYOUT[name].kind.expected)
    asked = read_request(table)
    asked["parallelism"].check(model)
    layers_of_chunks(model.layers, asked["parallelism"])
    return asked


def _require(table: Mapping[str, Any], name: str, expected: str) -> None:
    if name not in table:
        raise UsageError(f"{name} is missing, expected {expected}")
