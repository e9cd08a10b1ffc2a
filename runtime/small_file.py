"""Reads a user's files: regular ones only, since opening a pipe would wait; small ones are read whole."""

import os
import stat
import sys
from io import BufferedReader
from pathlib import Path

from kernelcast.runtime.errors import DataError

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
    """Open a regular file for reading, without waiting for the other end of a pipe.

    Raises:
        NotRegular: it is no regular file.
        OSError: it is missing or cannot be opened.
        ValueError: the path has a null byte.
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
    """There is no file of that name; who asked may know what else it could have been."""


def read_small_input(path: str, *, where: str, most_bytes: int) -> bytes:
    """`read_small_file`, or standard input for `-`.

    Raises:
        DataError: as `read_small_file`.
    """
    if path != STDIN:
        return read_small_file(Path(path), where=where, most_bytes=most_bytes)
    content = sys.stdin.buffer.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise DataError(f"{where}: larger than {most_bytes} bytes")
    return content


def read_small_file(path: Path, *, where: str, most_bytes: int, expected: str = "") -> bytes:
    """The content of a file; errors begin with `where` and end with what was expected, where that is said.

    Raises:
        NoSuchFile: it is missing.
        DataError: it is no regular file, cannot be read, or is larger than `most_bytes`.
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
