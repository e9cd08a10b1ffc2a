"""Connections to database files, own and untrusted, and transactions on them."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from kernelcast.runtime.errors import DataError
from kernelcast.store.database_file import (
    DEFAULT_MAX_SIZE_BYTES,
    check_file,
    check_size,
    check_version,
)
from kernelcast.store.schema import (
    FROZEN,
    SCHEMA_VERSION,
    migrate,
    read_as_current,
    schema_differences,
    schema_objects,
    schema_version,
)
from kernelcast.store.sqlite_errors import reported
from kernelcast.store.write import operators_are_current, peaks_are_current, write_operators, write_peaks
from kernelcast.store.write_ahead_log import check_journal, check_log

_BUSY_TIMEOUT_S = 60.0

# Of a schema that is not compared yet. SQLite itself reads statistics of the query planner with it, by then perhaps
# through expressions: each has to be quick, and there may not be many.
_GATE_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 16 * 2**10,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 16 * 2**10,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 50,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_GATE_STEPS = 20_000
_GATE_S = 5.0
# Afterwards: a text in an untrusted file must not fill the memory.
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 64 * 2**20,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10**6,
    sqlite3.SQLITE_LIMIT_COLUMN: 2000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 1000,
}
# Sound files need a hundredth of it; the pages of a damaged one may lead to each other in endless ways.
_STEPS_PER_BYTE = 100
_LEAST_STEPS = 10**7


class _Steps:
    """A progress handler with a limit of SQLite's steps and of time; being Python, it lets Ctrl-C end a statement."""

    def __init__(self, most: float, limit_s: float = float("inf")) -> None:
        self._left, self._between = most, int(min(100_000, most / 100))
        self._until_s = time.monotonic() + limit_s

    def limit(self, connection: sqlite3.Connection) -> None:
        """Become the connection's progress handler."""
        connection.set_progress_handler(self._count, self._between)

    def _count(self) -> bool:
        self._left -= self._between
        return self.is_over

    @property
    def is_over(self) -> bool:
        return self._left < 0 or time.monotonic() > self._until_s


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open a checked file in autocommit mode, migrated to the current schema, with the current operators.

    Errors as `_open`; DataError for an older schema while `read_only`.
    """
    connection, version = _open(path, read_only=read_only)
    try:
        # With WAL, NORMAL risks the last transactions at a power cut, never the database.
        connection.execute("PRAGMA synchronous = NORMAL")
        if read_only and version < SCHEMA_VERSION:
            raise DataError(
                f"{path}: has schema version {version}, expected {SCHEMA_VERSION}; "
                "open it once for writing to migrate it"
            )
        if not read_only:
            # Exported databases have no WAL, so that they can be read in read-only folders; writers use WAL.
            connection.execute("PRAGMA journal_mode = WAL")
            migrate(connection)
            if not (operators_are_current(connection) and peaks_are_current(connection)):
                with transaction(connection):
                    write_operators(connection)
                    write_peaks(connection)
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

    The file is not written: an older version is read as it is, without a copy (see `read_as_current`).

    Raises:
        DataError: not a kernelcast database, of a newer version, damaged, its log too, with another schema than
            kernelcast's, or larger than `max_size_bytes`.
        KeyboardInterrupt: Ctrl-C, also within a statement.
    """
    check_file(path)
    check_size(path, max_size_bytes)
    steps = _Steps(_LEAST_STEPS + _STEPS_PER_BYTE * path.stat().st_size)
    try:
        with reported(path):
            connection, version = _open(path, read_only=True)
            with closing(connection):
                if version < SCHEMA_VERSION:
                    read_as_current(connection)
                connection.execute("PRAGMA query_only = ON")
                steps.limit(connection)
                with snapshot(connection):
                    yield connection
    except KeyboardInterrupt:
        if not steps.is_over:
            raise
        raise DataError(f"{path}: is damaged (reading takes more steps than its pages can need)") from None


def _open(path: Path, *, read_only: bool) -> tuple[sqlite3.Connection, int]:
    """Open a checked file in autocommit mode, and compare its whole schema before anything else is read.

    Returns the connection and the schema's version.

    Raises:
        DataError: the version is not known, the schema is not that version's, the log of a file that is read is
            damaged, or a journal cannot be undone.
        sqlite3.Error: the file cannot be opened or is no database.
    """
    target = path.resolve()
    address = target.as_uri()
    if not read_only:
        check_journal(path, target, read_only=False)
    connection = _connect_uri(f"{address}?mode={'ro' if read_only else 'rw'}")
    try:
        schema_version(connection)
    except sqlite3.OperationalError:
        # In a read-only folder SQLite cannot create the files that WAL readers share. Without a -wal file and a
        # -journal no process is writing, so the file can be opened as immutable.
        connection.close()
        if not read_only or target.with_name(target.name + "-wal").exists():
            raise
        check_journal(path, target, read_only=True)
        connection = _connect_uri(f"{address}?mode=ro&immutable=1")
    except sqlite3.Error:
        connection.close()
        raise
    try:
        if read_only:
            check_log(path, target)
        version = _compare_schema(path, connection)
    except BaseException:
        connection.close()
        raise
    for limit, value in _LIMITS.items():
        connection.setlimit(limit, value)
    if read_only:
        _Steps(float("inf")).limit(connection)
    else:
        connection.set_progress_handler(None, 0)
    return connection, version


def _compare_schema(path: Path, connection: sqlite3.Connection) -> int:
    """Refuse a schema that is not kernelcast's; returns its version."""
    steps = _Steps(_GATE_STEPS, _GATE_S)
    steps.limit(connection)
    try:
        with snapshot(connection):  # another process may be migrating it
            check_version(path, version := schema_version(connection))
            differences = schema_differences(schema_objects(connection), version, FROZEN)
    except sqlite3.OperationalError as error:
        if not steps.is_over:
            raise
        differences = [f"reading the schema takes more than {_GATE_STEPS:,} steps or {_GATE_S:g} s"]
        raise _other_schema(path, differences) from error
    if differences:
        raise _other_schema(path, differences)
    return version


def _other_schema(path: Path, differences: list[str]) -> DataError:
    others = f" ({len(differences) - 1} more differences)" if len(differences) > 1 else ""
    return DataError(
        f"{path}: schema: {differences[0]}{others}; expected exactly the tables and views of schema.sql, "
        "nothing was read from it"
    )


def _connect_uri(uri: str) -> sqlite3.Connection:
    # isolation_level None: only this package begins and ends transactions.
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_BUSY_TIMEOUT_S)
    for limit, value in _GATE_LIMITS.items():
        connection.setlimit(limit, value)
    for setting in ("trusted_schema = OFF", "cell_size_check = ON", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {setting}")
    return connection
