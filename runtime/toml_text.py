"""TOML: parsed in a time that grows with its size alone, and written."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelcast.runtime.errors import DataError, one_line, printable_json
from kernelcast.runtime.small_file import read_small_file

MOST_PARTS = 16
"""Of one dotted key; tomllib's time grows with their square (400 KB of one key take minutes)."""

_PART = r"""(?:[\w\-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w\-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MOST_PARTS}}}", re.ASCII)


def parse_toml(content: bytes) -> dict[str, Any]:
    """The fields of a TOML document.

    Raises:
        ValueError: it is not UTF-8, not TOML, or has a key of more than 16 parts (or a text that looks like one).
        RecursionError: it is nested too deeply.
    """
    text = content.decode()
    found = _LONG_KEY.search(text)
    if found is not None:
        line = text.count("\n", 0, found.start()) + 1
        raise ValueError(f"a key of more than {MOST_PARTS} parts (at line {line})")
    return tomllib.loads(text)


def toml_fields(content: bytes, *, where: str, expected: str = "") -> dict[str, Any]:
    """The same; errors begin with `where` and end with what was expected, where that is said.

    Raises:
        DataError: as `parse_toml`.
    """
    try:
        return parse_toml(content)
    except (ValueError, RecursionError) as error:
        # Also a number above the interpreter's limit of digits, and endless nesting.
        instead = f", expected {expected}" if expected else ""
        raise DataError(f"{where}: not TOML ({one_line(str(error))}){instead}") from error


def read_toml(path: Path, *, where: str, most_bytes: int = 1 << 20, expected: str = "") -> dict[str, Any]:
    """The fields of a TOML file; errors as in `toml_fields`.

    Raises:
        NoSuchFile, DataError: as `read_small_file` and `parse_toml`.
    """
    content = read_small_file(path, where=where, most_bytes=most_bytes, expected=expected)
    return toml_fields(content, where=where, expected=expected)


def toml_document(values: Mapping[str, Any]) -> str:
    """Plain values as TOML: fields, then tables and lists of tables. What is None is left out."""
    lines = toml_lines({name: value for name, value in values.items() if not _tables(name, value)})
    for name, value in values.items():
        for heading, table in _tables(name, value):
            lines += ["", heading, *toml_lines(table)]
    return "\n".join(lines).removeprefix("\n") + "\n"


def toml_lines(values: Mapping[str, Any]) -> list[str]:
    """A line for each field that is not None."""
    # TOML shares basic strings, numbers, lists and booleans with JSON.
    return [
        f"{name} = {printable_json(json.dumps(value, ensure_ascii=False))}"
        for name, value in values.items()
        if value is not None
    ]


def _tables(name: str, value: object) -> list[tuple[str, Mapping[str, Any]]]:
    if isinstance(value, Mapping):
        return [(f"[{name}]", value)]
    if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
        return [(f"[[{name}]]", one) for one in value]
    return []
