"""Writing a page or trace to a file: piece by piece, and all of it or nothing."""

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from kernelcast.runtime.errors import DataError, UsageError, one_line


def check_target(path: Path, option: str) -> None:
    """Refuse, before any work, a file that cannot be written; `option` is the command-line option that named it.

    Raises:
        UsageError: its folder does not exist or may not be written, or it is a folder itself.
    """
    folder, shown = path.parent, one_line(str(path))
    if not folder.is_dir():
        raise UsageError(f"{option} {shown}: there is no folder {one_line(str(folder))}")
    if path.is_dir():
        raise UsageError(f"{option} {shown}: is a folder, expected a file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {shown}: no permission to write in folder {one_line(str(folder))}")


def write_pieces(path: Path, pieces: Iterable[str]) -> None:
    """Write texts one after the other, as UTF-8. The file appears under its name when it is complete.

    Raises:
        DataError: it cannot be written; what was there stays.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        try:
            with partial.open("x", encoding="utf-8", newline="\n") as stream:
                stream.writelines(pieces)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{one_line(str(path))}: cannot be written ({error.strerror or error})") from error
