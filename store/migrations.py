"""Schema versions: schema.sql is the current one, numbered migrations bring older databases there.

A change of schema.sql raises its user_version and appends one Migration here that does the same to an older
database; tests show that both end with the same tables, indexes and views.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelcast.runtime.errors import DataError
from kernelcast.store import version_2

APPLICATION_ID = 0x4B434442  # "KCDB", as in schema.sql
SCHEMA_VERSION = 2
SCHEMA_PATH = Path(__file__).resolve().parent.parent / "schema.sql"


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """The statements that turn version `to_version` − 1 into `to_version`."""

    to_version: int
    statements: tuple[str, ...]


MIGRATIONS: tuple[Migration, ...] = (Migration(to_version=2, statements=version_2.STATEMENTS),)


def create_schema(connection: sqlite3.Connection) -> None:
    """Create everything in schema.sql, in one transaction, in an empty database.

    Raises:
        sqlite3.Error: the database is not empty, or cannot be written.
    """
    script = SCHEMA_PATH.read_text(encoding="utf-8")
    try:
        connection.executescript(f"BEGIN IMMEDIATE;\n{script}\nCOMMIT;")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def schema_version(connection: sqlite3.Connection) -> int:
    """The version of the open database's schema."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Apply every migration that the database has not seen, each in a transaction of its own.

    A migration that fails or is interrupted leaves the database in the version before it. Two processes may
    migrate at once: the second finds the work done.

    Raises:
        DataError: a migration leaves rows that point to nothing.
        sqlite3.Error: a statement failed.
    """
    for migration in sorted(migrations, key=lambda migration: migration.to_version):
        if schema_version(connection) < migration.to_version:
            _apply(connection, migration)


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    # Rebuilding a table needs foreign keys off, which only works outside a transaction; they are checked at
    # the end.
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("BEGIN IMMEDIATE")
    try:
        if schema_version(connection) < migration.to_version:  # not done by another process meanwhile
            for statement in migration.statements:
                connection.execute(statement)
            dangling = connection.execute("PRAGMA foreign_key_check").fetchone()
            if dangling is not None:
                raise DataError(
                    f"migration to version {migration.to_version}: {dangling[0]} has dangling rows"
                )
            # user_version takes no parameter; the value is an int of our own.
            connection.execute(f"PRAGMA user_version = {int(migration.to_version)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk ends it by itself
            connection.execute("ROLLBACK")
        raise
    finally:
        connection.execute("PRAGMA foreign_keys = ON")
