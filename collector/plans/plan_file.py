"""Plans as TOML: the ones that ship in plans/, and files like them (docs/plans.md)."""

from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from kernelcast.collector.plans.plan_ranges import Plan
from kernelcast.runtime.errors import UsageError, alternatives, error_context, shown_path
from kernelcast.runtime.record import check_names
from kernelcast.runtime.request.fields import MODEL, renamed
from kernelcast.runtime.request.models import load_model
from kernelcast.runtime.small_file import NoSuchFile, read_toml

_MOST_VALUES = 100_000


def shipped_plans() -> list[str]:
    """Names of the plans that ship."""
    folder = files("kernelcast.collector.plans")
    return sorted(e.name.removesuffix(".toml") for e in folder.iterdir() if e.name.endswith(".toml"))


def load_plan(name_or_path: str) -> Plan:
    """A plan that ships (`quick`, `paper`, `validate`) or a TOML file.

    UsageError where there is no such plan, or a field is wrong; DataError where the file cannot be read or is not TOML.
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
    with error_context(where, kind=UsageError):
        return _plan_from(document, name=Path(name_or_path).stem)


def _plan_from(document: dict[str, Any], *, name: str) -> Plan:
    check_names(document, (field.name for field in fields(Plan) if field.name != "name"))
    given = _written_out(document)
    if isinstance(given.get("ranges"), dict):
        given["ranges"] = renamed(given["ranges"], MODEL)
    if isinstance(tables := given.get("collectives"), dict):  # one table, or several as [[collectives.NAME]]
        given["collectives"] = {key: one if isinstance(one, list) else [one] for key, one in tables.items()}
    if names := given.pop("models", ()):
        if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
            raise UsageError(field="models", found=names, expected="a list of models' names or files")
        given["models"] = tuple(map(load_model, names))
    plan = Plan.from_dict({**given, "name": name})
    if bool(plan.messages) == bool(plan.collectives):
        found = (
            "messages and collectives are both" if plan.messages else "neither messages nor collectives are"
        )
        raise UsageError(f"{found} given, expected one of them")
    return plan


def _written_out(value: Any) -> Any:
    """The value with `{ from, to, step }` and `{ from, to, times }` as lists of numbers; no list is empty."""
    if isinstance(value, list):
        if not value:
            raise UsageError(found=value, expected="at least one value")
        return [_written_out(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "from" in value:
        return _numbers(value)
    found = {}
    for key, one in value.items():
        with error_context(at=key):
            found[key] = _written_out(one)
    return found


def _numbers(value: dict[str, Any]) -> list[int]:
    ways = ({"from", "to", "step"}, {"from", "to", "times"})
    if set(value) not in ways or not all(type(one) is int and one >= 1 for one in value.values()):
        expected = "whole numbers from 1 as from, to and step, or from, to and times"
        raise UsageError(found=value, expected=expected)
    first, last, times = value["from"], value["to"], value.get("times")
    if first > last or times == 1:
        raise UsageError(found=value, expected="from at most to, and times above 1")
    numbers: list[int] = []
    while first <= last:
        if len(numbers) == _MOST_VALUES:
            raise UsageError(found=value, expected=f"at most {_MOST_VALUES:,} numbers")
        numbers.append(first)
        first = first * times if times else first + value["step"]
    return numbers
