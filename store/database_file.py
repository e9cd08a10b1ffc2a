"""Files of databases: checks of their headers, and creation.

The checks read the first bytes without SQLite, so that a refused file stays unchanged.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kernelcast.runtime.errors import DataError, system_errors
from kernelcast.runtime.output_file import check_writable as check_file_can_be_written
from kernelcast.runtime.output_file import unfinished_beside
from kernelcast.runtime.small_file import open_regular
from kernelcast.store.schema import APPLICATION_ID, OLDEST_VERSION, SCHEMA_VERSION, create_schema
from kernelcast.store.sqlite_errors import reported

DEFAULT_MAX_SIZE_BYTES = 16 * 2**30  # of an untrusted database

_MAGIC = b"SQLite format 3\x00"
_HEADER_BYTES = 100
_USER_VERSION = slice(60, 64)  # big-endian, see https://sqlite.org/fileformat2.html section 1.3
_APPLICATION_ID = slice(68, 72)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Application and version in the first 100 bytes of a SQLite file."""

    application_id: int
    user_version: int


def check_writable(path: Path) -> None:
    """Check before long work that a database and its folder can be written (DataError); the file stays unchanged."""
    with system_errors(str(path), "cannot be written", expected="a database to add to"):
        path.open("r+b").close()
    check_file_can_be_written(path, str(path))


def read_header(path: Path) -> Header:
    """Read a SQLite file's header; DataError where there is none."""
    try:
        with open_regular(path) as file:
            start = file.read(_HEADER_BYTES)
    except FileNotFoundError:
        raise DataError(f"{path}: no such database; expected a file written by kernelcast") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    if len(start) < _HEADER_BYTES or not start.startswith(_MAGIC):
        raise DataError(f"{path}: is not a SQLite database; expected one written by kernelcast")
    return Header(
        application_id=int.from_bytes(start[_APPLICATION_ID], "big"),
        user_version=int.from_bytes(start[_USER_VERSION], "big"),
    )


def check_file(path: Path) -> None:
    """Refuse a file that is no kernelcast database, or of a newer version (DataError); it stays unchanged."""
    header = read_header(path)
    if header.application_id != APPLICATION_ID:
        raise DataError(
            f"{path}: is not a kernelcast database; found application_id {header.application_id:#x}, "
            f"expected {APPLICATION_ID:#x}"
        )
    check_version(path, header.user_version)


def check_size(path: Path, max_size_bytes: int) -> None:
    """Refuse a file that is larger than a limit, its -wal file included: a DataError names the limit."""
    sizes = [file.stat().st_size for file in (path, path.with_name(path.name + "-wal")) if file.exists()]
    if sum(sizes) > max_size_bytes:
        raise DataError(
            f"{path}: has {sum(sizes) / 2**30:.3g} GiB, the limit is {max_size_bytes / 2**30:.3g} GiB "
            "(--max-size raises it)"
        )


def check_version(path: Path, found: int) -> None:
    """Refuse a schema version that is newer than this kernelcast, or older than any that it migrates (DataError)."""
    if found > SCHEMA_VERSION:
        raise DataError(
            f"{path}: has schema version {found}, this kernelcast reads versions up to {SCHEMA_VERSION}; "
            "use a newer kernelcast"
        )
    if found < OLDEST_VERSION:
        raise DataError(f"{path}: has schema version {found}, expected {OLDEST_VERSION} to {SCHEMA_VERSION}")


def create_file(path: Path) -> None:
    """Create an empty database that gets its name only when it is complete; errors as `unfinished_file`.

    When two processes create the same file, both use the file of the first.
    """
    with unfinished_file(path) as unfinished:
        publish(unfinished, path)


@contextmanager
def unfinished_file(path: Path) -> Iterator[Path]:
    """Yield an empty database next to `path` under a temporary name; it is deleted at the end unless published.

    DataError where the folder does not exist or cannot be written.
    """
    if not path.parent.is_dir():
        raise DataError(f"{path}: its folder does not exist")
    with unfinished_beside(path) as unfinished:
        with reported(path):
            connection = sqlite3.connect(unfinished, isolation_level=None)
            try:
                create_schema(connection)
                connection.execute("PRAGMA journal_mode = WAL")
            finally:
                connection.close()
        yield unfinished


def publish(unfinished: Path, path: Path) -> bool:
    """Give a complete, closed file its name; returns False when another process was faster.

    DataError where the folder cannot be written, or holds a log of an earlier database of that name: SQLite would write
    the pages in it over the new ones.
    """
    logs = [log for suffix in ("-wal", "-journal") if (log := path.with_name(path.name + suffix)).exists()]
    if logs and not path.exists():
        raise DataError(
            f"{path}: cannot be created next to {logs[0].name} of an earlier database, expected none; "
            "remove it or bring that database back"
        )
    try:
        os.link(unfinished, path)  # unlike a rename, never replaces an existing file
    except FileExistsError:
        return False
    except OSError:
        # File systems without hard links: a rename may replace a file created after this check.
        if path.exists():
            return False
        with system_errors(str(path), "cannot be created"):
            unfinished.rename(path)
    return True
