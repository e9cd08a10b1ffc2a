"""Connections: how a database file is opened, and transactions on it."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernelcast.runtime.errors import DataError
from kernelcast.store.database_file import check_version
from kernelcast.store.foreign_schema import active_objects, schema_differences
from kernelcast.store.migrations import SCHEMA_VERSION, migrate, schema_version
from kernelcast.store.write import operators_are_current, write_operators

_BUSY_TIMEOUT_S = 60.0
_LONGEST_VALUE_BYTES = 64 * 2**20  # one text of a stranger's file must not fill the memory


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open a checked file in autocommit mode, migrated to the present schema and with the present operators.

    Raises:
        DataError: the schema is newer than this kernelcast, older while `read_only`, or not ours.
        sqlite3.Error: the file cannot be opened, read or migrated.
    """
    connection = open_untrusted(path, read_only=read_only)
    try:
        _prepare(path, connection, read_only=read_only)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Hold the write lock for the block and store all of it, or nothing where the block raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have ended it already
            connection.execute("ROLLBACK")
        raise


def open_untrusted(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open a checked file in autocommit mode; its version and schema are still to be looked at.

    Raises:
        sqlite3.Error: the file cannot be opened or is no database.
    """
    address = path.resolve().as_uri()
    connection = _connect_uri(f"{address}?mode={'ro' if read_only else 'rw'}")
    try:
        schema_version(connection)
    except sqlite3.OperationalError:
        # In a folder that cannot be written SQLite cannot make the files that WAL readers share. Without a
        # -wal file nobody is writing either, and the file can be read as one that never changes.
        connection.close()
        if not read_only or path.with_name(path.name + "-wal").exists():
            raise
        connection = _connect_uri(f"{address}?mode=ro&immutable=1")
    except sqlite3.Error:
        connection.close()
        raise
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE_BYTES)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _connect_uri(uri: str) -> sqlite3.Connection:
    # isolation_level None: transactions begin and end where this package says so, nowhere else.
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_BUSY_TIMEOUT_S)


def _prepare(path: Path, connection: sqlite3.Connection, *, read_only: bool) -> None:
    # With WAL, NORMAL risks the last transactions at a power cut, never the database.
    connection.execute("PRAGMA synchronous = NORMAL")
    found = schema_version(connection)
    check_version(path, found)
    if read_only and found < SCHEMA_VERSION:
        raise DataError(
            f"{path}: has schema version {found}, expected {SCHEMA_VERSION}; "
            "open it once for writing to migrate it"
        )
    _refuse(path, active_objects(connection))
    if not read_only:
        # Databases that were exported are in one file only, for reading anywhere; writers use WAL.
        connection.execute("PRAGMA journal_mode = WAL")
        migrate(connection)
    _refuse(path, schema_differences(connection))
    if not read_only and not operators_are_current(connection):
        with transaction(connection):
            write_operators(connection)


def _refuse(path: Path, differences: list[str]) -> None:
    if differences:
        others = f" ({len(differences) - 1} more differences)" if len(differences) > 1 else ""
        raise DataError(
            f"{path}: {differences[0]}{others}; expected exactly the tables and views of schema.sql, "
            "nothing of it was read"
        )
