"""Model files as plain values: TOML or JSON on disk, whatever is in it."""

import json
from pathlib import Path
from typing import Any

from kernelcast.runtime.errors import DataError, UsageError, one_line, shown_path
from kernelcast.runtime.small_file import read_small_file
from kernelcast.runtime.toml_text import toml_fields

_MAX_FILE_BYTES = 1 << 20


def model_file(source: Path) -> str:
    """How errors name a model file."""
    return f"model file {shown_path(source)}"


def read_document(source: Path) -> dict[str, Any]:
    """The fields of a TOML (`.toml`) or JSON (`.json`) file.

    Raises:
        DataError: the file is missing, unreadable, too large, or not TOML or JSON with fields.
        UsageError: another suffix.
    """
    where = model_file(source)
    if source.suffix not in (".toml", ".json"):
        raise UsageError(field="suffix", found=source.suffix, expected=".toml or .json").within(where)
    content = read_small_file(source, where=where, most_bytes=_MAX_FILE_BYTES)
    if source.suffix == ".toml":
        return toml_fields(content, where=where)
    try:
        values = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON ({one_line(str(error))})") from error
    if not isinstance(values, dict):
        raise DataError(f"{where}: holds a {type(values).__name__}, expected an object of fields")
    return values
