"""Plans as TOML: the ones that ship in plans/, and files like them (docs/plans.md)."""

from dataclasses import fields
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import Any

from kernelcast.collector.plans.plan_ranges import OF_MODELS, CollectiveRange, Messages, Plan, Ranges
from kernelcast.runtime.errors import UsageError, error_context, shown, shown_name, shown_path
from kernelcast.runtime.hardware.load import Load
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.request.fields import MODEL, renamed
from kernelcast.runtime.request.models.library import load_model
from kernelcast.runtime.small_file import NoSuchFile
from kernelcast.runtime.spelling import alternatives
from kernelcast.runtime.toml_text import read_toml

# Of any number in a plan; larger ones are slips.
_LARGEST = 2**40
_MOST_VALUES = 100_000

_OPTIONAL = {
    Plan: {
        "shapes_per_operator", "messages", "collectives", "operators",
        "most_gflop", "most_tokens", "most_elements", "most_parameters", "load", "models", "device",
    },
    Ranges: {*OF_MODELS, "expert_parallel", "context_parallel"},
    Messages: set(),
    CollectiveRange: set(),
}  # fmt: skip


def shipped_plans() -> list[str]:
    """Names of the plans that ship."""
    folder = files("kernelcast.collector.plans")
    return sorted(e.name.removesuffix(".toml") for e in folder.iterdir() if e.name.endswith(".toml"))


def load_plan(name_or_path: str) -> Plan:
    """A plan that ships (`quick`, `paper`, `validate`) or a TOML file.

    Raises:
        UsageError: there is no such plan, or a field is wrong.
        DataError: the file cannot be read or is not TOML.
    """
    where = f"plan {shown_path(name_or_path)}"
    shipped = shipped_plans()
    folder = files("kernelcast.collector.plans")
    source = Path(str(folder.joinpath(f"{name_or_path}.toml") if name_or_path in shipped else name_or_path))
    expected = f"a TOML file or one of the plans that ship ({alternatives(str(name_or_path), shipped)})"
    try:
        document = read_toml(source, where=where, expected=expected)
    except NoSuchFile as error:
        raise UsageError.of(error) from None
    with error_context(where):
        return _plan_from(document, name=Path(name_or_path).stem)


def _plan_from(document: dict[str, Any], *, name: str) -> Plan:
    _check_names(document, Plan, "")
    given: dict[str, Any] = {"name": name, "shapes_per_operator": 0, "seed": document["seed"]}
    for key, value in document.items():
        given[key] = _READERS[key](key, value) if key in _READERS else _scalar(key, value)
    if "messages" not in given and "collectives" not in given:
        raise UsageError("messages is missing, expected it or collectives")
    if "messages" in given and "collectives" in given:
        raise UsageError("both messages and collectives are given, expected one of them")
    if names := given.get("models"):
        given["models"] = tuple(map(load_model, names))
    return Plan(**given)


def _scalar(key: str, value: Any) -> Any:
    if key == "most_gflop":
        if type(value) not in (int, float) or not 0 < value < inf:
            raise UsageError(f"most_gflop is {shown(value)}, expected a number above 0")
        return value
    low = 0 if key == "seed" else 1
    if not _is_whole(value, low=low):
        raise UsageError(f"{key} is {shown(value)}, expected a whole number from {low}")
    return value


def _operators(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise UsageError(f"{key} is {shown(value)}, expected a list of operators")
    for one in value:
        if not isinstance(one, str) or one not in OPERATORS:
            raise UsageError(f"{key} has {shown(one)}, expected some of {', '.join(OPERATORS)}")
    return tuple(value)


def _models(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise UsageError(f"{key} is {shown(value)}, expected a list of models' names or files")
    return tuple(value)


def _device(key: str, value: Any) -> str:
    if value not in ("cpu", "cuda"):
        raise UsageError(f"{key} is {shown(value)}, expected cpu or cuda")
    return str(value)


def _load(key: str, value: Any) -> Load:
    found = [one for one in Load if one and one.value == value]
    if not found:
        raise UsageError(f"{key} is {shown(value)}, expected {' or '.join(filter(None, Load))}")
    return found[0]


def _ranges(key: str, value: Any) -> Ranges:
    value = renamed(_table(key, value), MODEL)
    _check_names(value, Ranges, f"{key}.")
    return Ranges(**{name: _values(f"{key}.{name}", listed) for name, listed in value.items()})


def _messages(key: str, value: Any) -> Messages:
    _check_names(_table(key, value), Messages, f"{key}.")
    for name, size in value.items():
        if not _is_whole(size, low=1):
            raise UsageError(f"{key}.{name} is {shown(size)}, expected a whole number from 1")
    return Messages(**value)


def _collectives(key: str, value: Any) -> dict[str, tuple[CollectiveRange, ...]]:
    """Ranges of a collective by name: one table, or several as `[[collectives.NAME]]`."""
    known = [op.name for op in OPERATORS.values() if op.is_collective]
    found = {}
    for name, tables in _table(key, value).items():
        if name not in known:
            raise UsageError(f"{key}.{shown_name(name)} is unknown; known are {', '.join(known)}")
        listed = tables if isinstance(tables, list) and tables else [tables]
        found[name] = tuple(_collective(f"{key}.{name}", table) for table in listed)
    return found


def _collective(prefix: str, table: Any) -> CollectiveRange:
    _check_names(_table(prefix, table), CollectiveRange, f"{prefix}.")
    return CollectiveRange(
        entries=_values(f"{prefix}.entries", table["entries"]),
        processes=_values(f"{prefix}.processes", table["processes"]),
    )


_READERS = {
    "ranges": _ranges,
    "messages": _messages,
    "collectives": _collectives,
    "operators": _operators,
    "load": _load,
    "models": _models,
    "device": _device,
}


def _table(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{key} is {shown(value)}, expected a table [{key}]")
    return value


def _values(key: str, value: Any) -> tuple[Any, ...]:
    """A list of numbers, or `{ from, to, step }` or `{ from, to, times }` written out."""
    if isinstance(value, dict):
        return _spelled_out(key, value)
    fractions = key in ("ranges.mlp_ratio", "ranges.expert_ratio")
    if (
        not isinstance(value, list)
        or not value
        or not all(_is_whole(v, low=1) or (fractions and type(v) is float and 0 < v < 1000) for v in value)
    ):
        what = "numbers above 0" if fractions else "whole numbers from 1"
        raise UsageError(f"{key} is {shown(value)}, expected a list of {what}")
    return tuple(dict.fromkeys(value))


def _spelled_out(key: str, value: dict[str, Any]) -> tuple[int, ...]:
    ways = ({"from", "to", "step"}, {"from", "to", "times"})
    if set(value) not in ways or not all(_is_whole(v, low=1) for v in value.values()):
        raise UsageError(
            f"{key} is {shown(value)}, expected whole numbers from 1 as from, to and step, or from, to and times"
        )
    first, last = value["from"], value["to"]
    if first > last or value.get("times") == 1:
        raise UsageError(f"{key} is {shown(value)}, expected from at most to, and times above 1")
    numbers: list[int] = []
    while first <= last and len(numbers) <= _MOST_VALUES:
        numbers.append(first)
        first = first * value["times"] if "times" in value else first + value["step"]
    if len(numbers) > _MOST_VALUES:
        raise UsageError(f"{key} means more than {_MOST_VALUES:,} numbers, expected fewer")
    return tuple(numbers)


def _is_whole(value: Any, *, low: int) -> bool:
    return type(value) is int and low <= value <= _LARGEST


def _check_names(found: dict[str, Any], kind: type[Any], prefix: str) -> None:
    expected = {f.name for f in fields(kind)} - {"name"}
    if unknown := sorted(set(found) - expected):
        raise UsageError(
            f"{prefix}{shown_name(unknown[0])} is unknown; known are {', '.join(sorted(expected))}"
        )
    if missing := sorted(expected - _OPTIONAL[kind] - set(found)):
        raise UsageError(f"{prefix}{missing[0]} is missing")
