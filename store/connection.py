"""Connections: how a database file is opened, and transactions on it."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernelcast.runtime.errors import DataError
from kernelcast.store.database_file import check_version
from kernelcast.store.migrations import SCHEMA_VERSION, migrate, schema_version
from kernelcast.store.write import operators_are_current, write_operators

_BUSY_TIMEOUT_S = 60.0


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open a checked file in autocommit mode, migrated to the present schema and with the present operators.

    Raises:
        DataError: the schema is newer than this kernelcast, or older while `read_only`.
        sqlite3.Error: the file cannot be opened, read or migrated.
    """
    connection = _open(path, read_only=read_only)
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


def _open(path: Path, *, read_only: bool) -> sqlite3.Connection:
    address = path.resolve().as_uri()
    connection = _connect_uri(f"{address}?mode={'ro' if read_only else 'rw'}")
    if not read_only:
        return connection
    try:
        schema_version(connection)
    except sqlite3.OperationalError:
        # In a folder that cannot be written SQLite cannot make the files that WAL readers share. Without a
        # -wal file nobody is writing either, and the file can be read as one that never changes.
        connection.close()
        if path.with_name(path.name + "-wal").exists():
            raise
        return _connect_uri(f"{address}?mode=ro&immutable=1")
    return connection


def _connect_uri(uri: str) -> sqlite3.Connection:
    # isolation_level None: transactions begin and end where this package says so, nowhere else.
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_BUSY_TIMEOUT_S)


def _prepare(path: Path, connection: sqlite3.Connection, *, read_only: bool) -> None:
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA foreign_keys = ON")
    # With WAL, NORMAL risks the last transactions at a power cut, never the database.
    connection.execute("PRAGMA synchronous = NORMAL")
    found = schema_version(connection)
    check_version(path, found)
    if read_only:
        if found < SCHEMA_VERSION:
            raise DataError(
                f"{path}: has schema version {found}, expected {SCHEMA_VERSION}; "
                "open it once for writing to migrate it"
            )
        return
    migrate(connection)
    if not operators_are_current(connection):
        with transaction(connection):
            write_operators(connection)
