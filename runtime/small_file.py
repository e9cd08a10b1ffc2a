"""Reads a user's files: regular ones only, since opening a pipe would wait; small ones are read whole.

TOML is parsed in time linear in its size, and written.
"""

import json
import os
import re
import stat
import sys
import tomllib
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

from kernelcast.runtime.errors import DataError, one_line, printable_json

STDIN = "-"
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotRegular(OSError):
    """A pipe, a device, a socket or a folder in place of a file; `strerror` says which."""


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading, without waiting for the other end of a pipe. NotRegular where it is no regular
    file; OSError where it is missing or cannot be opened; ValueError where the path has a null byte.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise NotRegular(0, f"is {kind}, expected a regular file", os.fspath(path))
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "rb")


class NoSuchFile(DataError):
    """There is no file of that name; the caller may know what else the name could mean."""


def read_small_input(path: str, *, where: str, most_bytes: int) -> bytes:
    """`read_small_file`, or standard input for `-`; errors as `read_small_file`."""
    if path != STDIN:
        return read_small_file(Path(path), where=where, most_bytes=most_bytes)
    content = sys.stdin.buffer.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise DataError(f"{where}: larger than {most_bytes} bytes")
    return content


def read_small_file(path: Path, *, where: str, most_bytes: int, expected: str = "") -> bytes:
    """The content of a file; errors begin with `where` and end with what was expected, where that is said. NoSuchFile
    where it is missing; DataError where it is no regular file, cannot be read, or is larger than `most_bytes`.
    """
    instead = f", expected {expected}" if expected else ""
    try:
        with open_regular(path) as stream:
            content = stream.read(most_bytes + 1)
    except FileNotFoundError as error:
        raise NoSuchFile(f"{where}: no such file{instead}") from error
    except (OSError, ValueError) as error:
        # ValueError: a path with a null byte.
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{where}: cannot be read ({reason}){instead}") from error
    if len(content) > most_bytes:
        raise DataError(f"{where}: larger than {most_bytes} bytes{instead}")
    return content


MOST_PARTS = 16
"""Of one dotted key; tomllib's time grows with their square (400 KB of one key take minutes)."""

_PART = r"""(?:[\w\-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w\-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MOST_PARTS}}}", re.ASCII)


def parse_toml(content: bytes) -> dict[str, Any]:
    """The fields of a TOML document. ValueError where it is not UTF-8, not TOML, or has a key of more than 16 parts (or
    a text that looks like one); RecursionError where it is nested too deeply.
    """
    text = content.decode()
    found = _LONG_KEY.search(text)
    if found is not None:
        line = text.count("\n", 0, found.start()) + 1
        raise ValueError(f"a key of more than {MOST_PARTS} parts (at line {line})")
    return tomllib.loads(text)


def toml_fields(content: bytes, *, where: str, expected: str = "") -> dict[str, Any]:
    """The same; DataError begins with `where` and ends with what was expected, where that is said."""
    try:
        return parse_toml(content)
    except (ValueError, RecursionError) as error:
        # Also a number above the interpreter's limit of digits, and endless nesting.
        instead = f", expected {expected}" if expected else ""
        raise DataError(f"{where}: not TOML ({one_line(str(error))}){instead}") from error


def read_toml(path: Path, *, where: str, most_bytes: int = 1 << 20, expected: str = "") -> dict[str, Any]:
    """The fields of a TOML file; errors as in `toml_fields`. Errors as `read_small_file` and `parse_toml`."""
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
