"""Settings as TOML tables and JSON objects, their keys joined by dots."""

import json
from collections.abc import Iterator
from typing import Any

from kernelcast.runtime import small_file
from kernelcast.runtime.errors import DataError, one_line
from kernelcast.runtime.frameworks.rows import Settings

_DEEPEST = 8
"""Levels of nesting that are looked into."""


def parse_toml(text: str) -> Settings:
    """The settings of a TOML document.

    Raises:
        DataError: it is not TOML.
    """
    try:
        return dict(_leaves(small_file.parse_toml(text.encode())))
    except (ValueError, RecursionError) as error:
        raise DataError(f"not valid TOML ({_first_line(error)})") from error


def parse_json(text: str) -> Settings:
    """The settings of a JSON object.

    Raises:
        DataError: it is not one.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not valid JSON ({_first_line(error)})") from error
    return dict(_leaves(values))


def render_toml(settings: Settings) -> str:
    """TOML of settings with keys `table.name`, in the tables' order."""
    tables: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        table, _, name = key.partition(".")
        tables.setdefault(table, {})[name] = value
    return small_file.toml_document(tables).rstrip()


def render_json(settings: Settings) -> str:
    return json.dumps(nested(settings), indent=2)


def nested(settings: Settings) -> dict[str, Any]:
    """Tables of settings with keys `table.name`; a table stands where its first key does."""
    tables: dict[str, Any] = {}
    for key, value in settings.items():
        *outer, name = key.split(".")
        table = tables
        for one in outer:
            table = table.setdefault(one, {})
        table[name] = value
    return tables


def _leaves(values: dict[str, Any], before: str = "", depth: int = 1) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and depth < _DEEPEST:
            yield from _leaves(value, f"{before}{name}.", depth + 1)
        else:
            yield before + name, value


def _first_line(error: Exception) -> str:
    return one_line((str(error).splitlines() or [""])[0])
