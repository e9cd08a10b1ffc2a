"""Stacks as TOML files: read strictly, written in full; those that ship by name."""

import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from kernelcast.runtime.errors import DataError, UsageError, one_line, shown, shown_path
from kernelcast.runtime.shipped import STACKS
from kernelcast.runtime.small_file import read_small_file
from kernelcast.runtime.spelling import alternatives
from kernelcast.runtime.stack.stack import FittedRuns, LeftOut, Stack
from kernelcast.runtime.toml_text import parse_toml

_MAX_FILE_BYTES = 1 << 18
_TABLES = {"runs": FittedRuns, "left_out": LeftOut}
_ROWS = "rows of numbers"
T = TypeVar("T", Stack, FittedRuns, LeftOut)


def find_stack(wanted: str | os.PathLike[str]) -> Stack:
    """A stack that ships, by name, or a TOML file.

    Raises:
        UsageError: a name that nothing that ships has.
        DataError: as `read_stack`.
    """
    text = os.fspath(wanted)
    return read_stack(text) if "/" in text or text.endswith(".toml") else stack_named(text)


def shipped_stacks() -> tuple[str, ...]:
    """Names of the stacks that ship."""
    return tuple(sorted(path.stem for path in STACKS.glob("*.toml")))


@cache
def stack_named(name: str) -> Stack:
    """A stack that ships.

    Raises:
        UsageError: none has that name.
    """
    if name not in shipped_stacks():
        raise UsageError(
            f"stack {shown(name)} is unknown, {alternatives(name, shipped_stacks())}; "
            "the path of a .toml file works too"
        )
    return read_stack(STACKS / f"{name}.toml")


def read_stack(path: str | os.PathLike[str]) -> Stack:
    """Read a stack's file.

    Raises:
        DataError: it is missing, unreadable, not TOML, or a field is missing, unknown or wrong; one line that names
            file and field.
    """
    where = f"stack {shown_path(Path(path))}"
    content = read_small_file(Path(path), where=where, most_bytes=_MAX_FILE_BYTES)
    try:
        values = parse_toml(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not TOML ({one_line(str(error))})") from error
    try:
        return _record(Stack, values)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def stack_toml(stack: Stack) -> str:
    """The stack as a TOML file, with all that is known."""
    plain = {name: value for name, value in asdict(stack).items() if value is not None}
    lines = [f"{name} = {_toml(value)}" for name, value in plain.items() if name not in (*_TABLES, "options")]
    if stack.options:
        lines += ["", "[options]", *(f"{name} = {_toml(value)}" for name, value in stack.options.items())]
    for table in _TABLES:
        for row in plain[table]:
            lines += ["", f"[[{table}]]", *(f"{name} = {_toml(value)}" for name, value in row.items())]
    return "\n".join(lines) + "\n"


def _record(kind: type[T], values: object) -> T:
    if not isinstance(values, Mapping):
        raise DataError(f"{shown(values)} is no table, expected one of the fields of {kind.__name__}")
    known = {one.name: one for one in fields(kind)}
    for name in values:
        if name not in known:
            raise DataError(f"field {shown(name)} is unknown, expected some of {', '.join(known)}")
    for name, field in known.items():
        if field.default is MISSING and field.default_factory is MISSING and name not in values:
            raise DataError(f"{name} is missing, expected {_expected(str(field.type))}")
    return kind(**{name: _value(name, str(known[name].type), value) for name, value in values.items()})


def _value(name: str, kind: str, value: object) -> Any:
    """A value of TOML as a field of the type `kind` holds it."""
    if name in _TABLES:
        if not isinstance(value, list):
            raise DataError(f"{name} is {shown(value)}, expected tables [[{name}]]")
        return tuple(_record(_TABLES[name], row) for row in value)
    if "Mapping" in kind:
        if not isinstance(value, dict):
            raise DataError(f"{name} is {shown(value)}, expected a table [{name}]")
        return value
    if "str" in kind and "tuple" in kind:
        is_kind = isinstance(value, list) and all(isinstance(one, str) for one in value)
    elif "tuple" in kind:
        is_kind = isinstance(value, list) and all(
            isinstance(row, list) and all(type(one) in (int, float) for one in row) for row in value
        )
        if is_kind:
            assert isinstance(value, list)
            return tuple(tuple(map(float, row)) for row in value)
    elif "str" in kind:
        is_kind = isinstance(value, str)
    elif "float" in kind:
        is_kind = type(value) in (int, float)
    else:
        is_kind = type(value) is int
    if not is_kind:
        raise DataError(f"{name} is {shown(value)}, expected {_expected(kind)}")
    return tuple(value) if isinstance(value, list) else value


def _expected(kind: str) -> str:
    if "tuple" in kind:
        return "a list of texts" if "str" in kind else _ROWS
    return "a text" if "str" in kind else "a number" if "float" in kind else "a whole number"


def _toml(value: object) -> str:
    # TOML's basic strings, numbers and lists are those of JSON.
    return json.dumps(value, ensure_ascii=False)
