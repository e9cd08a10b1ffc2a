"""Schema versions: schema.sql is the current one, numbered migrations bring older databases there.

A change of schema.sql raises its user_version and adds a migration here. Tests check that a migrated database and a new
one have the same tables, indexes and views. Every migration ends with the views of schema.sql, because views hold no
data. Migrations also take new tables from schema.sql: when a later version changes such a table, its first statement
must be kept here.
"""

import sqlite3
from collections.abc import Callable, Mapping

from kernelcast.runtime.errors import DataError
from kernelcast.store.schema import REMOVED_VIEWS, definitions

APPLICATION_ID = 0x4B434442  # "KCDB", as in schema.sql
SCHEMA_VERSION = 9
OLDEST_VERSION = 4

Upgrade = Callable[[sqlite3.Connection], None]
"""Changes the tables of the previous version, in the caller's transaction; the views are dropped."""


def _new_tables(*names: str) -> Upgrade:
    def create(connection: sqlite3.Connection) -> None:
        for kind in ("table", "index"):
            for statement in definitions(kind, *names).values():
                connection.execute(statement)

    return create


def _matched_ranks(connection: sqlite3.Connection) -> None:
    _new_tables("trace_clock", "matched_collective", "host_time")(connection)
    there = {name for (name,) in connection.execute("SELECT name FROM pragma_table_info('event_kind')")}
    for column in ("grid TEXT NOT NULL DEFAULT ''", "block TEXT NOT NULL DEFAULT ''", "registers INTEGER",
                   "occupancy_percent REAL"):  # fmt: skip
        if column.split()[0] not in there:
            connection.execute(f"ALTER TABLE event_kind ADD COLUMN {column}")


_TIMELINES = ("timeline", "traced_step", "event_kind", "event_scope", "traced_event")

MIGRATIONS: Mapping[int, Upgrade] = {
    5: _new_tables("device_peak", *_TIMELINES),
    6: _new_tables(),  # only views: `step_time` has idle time by cause
    7: _new_tables("failure_log", "step_times"),
    8: _matched_ranks,
    9: _new_tables("merge", "merged_row"),
}
"""Migrations by the version that they produce."""

FROZEN: Mapping[int, str] = {
    4: "a8c3b411e242773af621d2238267db40",
    5: "36f01e231c59ad4c3cd0b68fd9f3f79f",
    6: "36f01e231c59ad4c3cd0b68fd9f3f79f",
    7: "d2bd9694daf6ee08148dc13ea65845a6",
    8: "e26d51fe8c5d389d298f303a5e8cd1ff",
}
"""Digests of the tables and indexes of older versions (`schema_digest`): they are compared before anything is read."""


def schema_version(connection: sqlite3.Connection) -> int:
    """The version of the open database's schema."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, migrations: Mapping[int, Upgrade] = MIGRATIONS) -> None:
    """Apply the migrations that the database still needs, each in a separate transaction.

    A migration that fails or is interrupted leaves the previous version. Two processes may migrate at the same time:
    the second one finds nothing to do.

    Raises:
        DataError: after a migration, a row refers to a missing row.
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
        if schema_version(connection) < version:  # another process may have migrated it meanwhile
            views = definitions("view")
            for name in (*views, *REMOVED_VIEWS):
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
