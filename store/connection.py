"""Connections to database files, own and untrusted, and transactions on them."""

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from kernelcast.runtime.errors import DataError
from kernelcast.store.database_file import (
    DEFAULT_MAX_SIZE_BYTES,
    check_file,
    check_size,
    check_version,
    read_header,
)
from kernelcast.store.migrations import SCHEMA_VERSION, migrate, schema_version
from kernelcast.store.schema import foreign_objects, schema_differences
from kernelcast.store.sqlite_errors import reported
from kernelcast.store.write import operators_are_current, peaks_are_current, write_operators, write_peaks

_BUSY_TIMEOUT_S = 60.0
_LONGEST_VALUE_BYTES = 64 * 2**20  # a text in an untrusted file must not fill the memory


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open a checked file in autocommit mode, migrated to the current schema, with the current operators.

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
    """Hold the write lock for the block; commit at its end, or roll back when it raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have ended it already
            connection.execute("ROLLBACK")
        with suppress(sqlite3.Error):  # rolled back pages must not stay in the log: the disk may be full
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        raise


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Read one state of the database throughout the block, also while other processes write."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


@contextmanager
def foreign_database(
    path: Path, *, max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES
) -> Iterator[sqlite3.Connection]:
    """Yield a connection that reads one state of an untrusted database throughout the block.

    The file is not written: an older version is migrated in a temporary copy.

    Raises:
        DataError: not a kernelcast database, of a newer version, damaged, with foreign tables, views
            or triggers, or larger than `max_size_bytes`.
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
    try:
        temporary = tempfile.TemporaryDirectory()
    except OSError as error:
        raise DataError(
            f"{path}: has an older version, and there is no room for a copy to migrate ({error.strerror})"
        ) from error
    with temporary as folder:
        copy = Path(folder, path.name)
        with (
            closing(open_untrusted(path, read_only=True)) as old,
            closing(sqlite3.connect(copy)) as new,
        ):
            old.backup(new)
        connect(copy, read_only=False).close()
        yield copy


def open_untrusted(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open a checked file in autocommit mode; its version and schema are not checked yet.

    Raises:
        sqlite3.Error: the file cannot be opened or is no database.
    """
    address = path.resolve().as_uri()
    connection = _connect_uri(f"{address}?mode={'ro' if read_only else 'rw'}")
    try:
        schema_version(connection)
    except sqlite3.OperationalError:
        # In a read-only folder SQLite cannot create the files that WAL readers share. Without a -wal file no
        # process is writing, so the file can be opened as immutable.
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
    # isolation_level None: only this package begins and ends transactions.
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
    _refuse(path, foreign_objects(connection))
    if not read_only:
        # Exported databases have no WAL, so that they can be read in read-only folders; writers use WAL.
        connection.execute("PRAGMA journal_mode = WAL")
        migrate(connection)
    _refuse(path, schema_differences(connection))
    if not read_only and not (operators_are_current(connection) and peaks_are_current(connection)):
        with transaction(connection):
            write_operators(connection)
            write_peaks(connection)


def _refuse(path: Path, differences: list[str]) -> None:
    if differences:
        others = f" ({len(differences) - 1} more differences)" if len(differences) > 1 else ""
        raise DataError(
            f"{path}: {differences[0]}{others}; expected exactly the tables and views of schema.sql, "
            "nothing was read from it"
        )
