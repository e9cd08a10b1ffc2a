"""TOML files that somebody wrote, whatever is in them."""

from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from kernelcast.runtime.errors import DataError, one_line
from kernelcast.runtime.small_file import open_regular
from kernelcast.runtime.toml_text import parse_toml

_MAX_FILE_BYTES = 1 << 22


def read_toml(source: Path | Traversable, *, where: str, expected: str) -> dict[str, Any]:
    """The fields of a TOML file; errors begin with `where` and end with what was expected.

    Raises:
        FileNotFoundError: there is none; the caller knows what else it could have been.
        DataError: the file cannot be read or is not TOML.
    """
    try:
        if isinstance(source, Path):
            with open_regular(source) as stream:
                content = stream.read(_MAX_FILE_BYTES + 1)
        else:
            content = source.read_bytes()
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        # ValueError: a path with a null byte.
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{where}: cannot be read ({reason}), expected {expected}") from error
    if len(content) > _MAX_FILE_BYTES:
        raise DataError(f"{where}: larger than {_MAX_FILE_BYTES} bytes, expected {expected}")
    try:
        return parse_toml(content)
    except (ValueError, RecursionError) as error:
        # Also a number above the interpreter's limit of digits, and endless nesting.
        raise DataError(f"{where}: not TOML ({one_line(str(error))}), expected {expected}") from error
