"""Schema versions: schema.sql is the current one, numbered migrations bring older databases there.

A change of schema.sql raises its user_version and adds a migration here that changes an older database's tables alike;
tests show that both end with the same tables, indexes and views. Views hold nothing, so every migration ends with those
of schema.sql. A migration also takes from there the tables that no later version changed: whoever changes one of them
keeps its statement of then where it was created.
"""

import sqlite3
from collections.abc import Callable, Mapping

from kernelcast.runtime.errors import DataError
from kernelcast.store.schema import definitions

APPLICATION_ID = 0x4B434442  # "KCDB", as in schema.sql
SCHEMA_VERSION = 6
OLDEST_VERSION = 4

Upgrade = Callable[[sqlite3.Connection], None]
"""Changes the tables of the version before, in the caller's transaction and without views."""


def _new_tables(*names: str) -> Upgrade:
    def create(connection: sqlite3.Connection) -> None:
        for kind in ("table", "index"):
            for statement in definitions(kind, *names).values():
                connection.execute(statement)

    return create


_TIMELINES = ("timeline", "traced_step", "event_kind", "event_scope", "traced_event")

MIGRATIONS: Mapping[int, Upgrade] = {
    5: _new_tables("device_peak", *_TIMELINES),
    6: _new_tables(),  # only views: `step_time` has idle time by cause
}
"""The migrations by the version that they lead to."""


def schema_version(connection: sqlite3.Connection) -> int:
    """The version of the open database's schema."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, migrations: Mapping[int, Upgrade] = MIGRATIONS) -> None:
    """Apply every migration that the database has not seen, each in a transaction of its own.

    A migration that fails or is interrupted leaves the database in the version before it. Two processes may
    migrate at once: the second finds the work done.

    Raises:
        DataError: a migration leaves rows that point to nothing.
        sqlite3.Error: a statement failed.
    """
    for version, upgrade in sorted(migrations.items()):
        if schema_version(connection) < version:
            _apply(connection, version, upgrade)


def _apply(connection: sqlite3.Connection, version: int, upgrade: Upgrade) -> None:
    # Rebuilding a table needs foreign keys off, which only works outside a transaction; they are checked at
    # the end.
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("BEGIN IMMEDIATE")
    try:
        if schema_version(connection) < version:  # not done by another process meanwhile
            views = definitions("view")
            for name in views:
                connection.execute(f"DROP VIEW IF EXISTS {name}")
            upgrade(connection)
            for sql in views.values():
                connection.execute(sql)
            dangling = connection.execute("PRAGMA foreign_key_check").fetchone()
            if dangling is not None:
                raise DataError(f"migration to version {version}: {dangling[0]} has dangling rows")
            # user_version takes no parameter; the value is an int of our own.
            connection.execute(f"PRAGMA user_version = {int(version)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk ends it by itself
            connection.execute("ROLLBACK")
        raise
    finally:
        connection.execute("PRAGMA foreign_keys = ON")
