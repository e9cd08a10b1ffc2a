"""Somebody else's database, opened to read: checked, never changed, brought to the present version in a copy."""

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from kernelcast.store.connection import connect, open_untrusted
from kernelcast.store.contents import snapshot
from kernelcast.store.database_file import DEFAULT_MAX_SIZE_BYTES, check_file, check_size, read_header
from kernelcast.store.migrations import SCHEMA_VERSION
from kernelcast.store.sqlite_errors import reported


@contextmanager
def foreign_database(
    path: Path, *, max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES
) -> Iterator[sqlite3.Connection]:
    """Yield a connection that reads one state of the database for the whole block.

    An older version is migrated in a temporary copy; the file itself stays as it is.

    Raises:
        DataError: not a kernelcast database, of a newer version, damaged, with tables, views or triggers that
            are not ours, or larger than `max_size_bytes`.
    """
    check_file(path)
    check_size(path, max_size_bytes)
    with (
        reported(path),
        _current_copy(path) as current,
        closing(connect(current, read_only=True)) as connection,
    ):
        connection.execute("PRAGMA query_only = ON")
        with snapshot(connection):
            yield connection


@contextmanager
def _current_copy(path: Path) -> Iterator[Path]:
    if read_header(path).user_version == SCHEMA_VERSION:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.name)
        with (
            closing(open_untrusted(path, read_only=True)) as old,
            closing(sqlite3.connect(copy)) as new,
        ):
            old.backup(new)
        connect(copy, read_only=False).close()
        yield copy
