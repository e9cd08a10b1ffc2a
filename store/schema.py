"""schema.sql: databases are created from it; migrations and checks read its statements, docs its comments.

A database's schema is compared with it before any other use, and only its text is read: triggers and views of an
untrusted file would run.

schema.sql is the current version, numbered migrations bring older databases there. A change of it raises its
user_version and adds a migration here. Tests check that a migrated database and a new one have the same tables,
indexes and views. Every migration ends with the views of schema.sql, because views hold no data. The first one takes
new tables from schema.sql: when a later version changes such a table, its first statement must be kept here.
"""

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from kernelcast.runtime.errors import DataError

SCHEMA_PATH = Path(__file__).resolve().parent.parent / "schema.sql"

REMOVED_VIEWS = ("rank_time",)
"""Views of older versions, which migrations drop."""

# Units by the end of a column's name, as pint writes them.
_UNITS = (
    ("_us", "us"), ("_bytes", "byte"), ("_gib", "GiB"), ("_mhz", "MHz"), ("_percent", "percent"),
    ("_w", "W"), ("_c", "degC"), ("flops_per_s", ""), ("bytes_per_s", ""), ("_s", "s"),
)  # fmt: skip


def create_schema(connection: sqlite3.Connection) -> None:
    """Create everything in schema.sql, in one transaction, in an empty database; sqlite3.Error in any other."""
    script = SCHEMA_PATH.read_text(encoding="utf-8")
    try:
        connection.executescript(f"BEGIN IMMEDIATE;\n{script}\nCOMMIT;")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def empty_database() -> Iterator[sqlite3.Connection]:
    """A new database in memory."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        create_schema(connection)
        yield connection


def definitions(kind: str, *tables: str) -> dict[str, str]:
    """Statements of schema.sql by name: all views, or the tables or indexes of `tables`."""
    with empty_database() as connection:
        found = connection.execute(
            "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = ? AND sql IS NOT NULL", (kind,)
        )
        return {name: sql for name, table, sql in found if kind == "view" or table in tables}


@dataclass(frozen=True, slots=True, kw_only=True)
class Documented:
    """A table or view with its comment, and the comments of its columns (of a view some have none)."""

    name: str
    comment: str
    columns: dict[str, str]


@cache
def documented() -> dict[str, Documented]:
    """Every table and view of schema.sql, in its order."""
    found: dict[str, Documented] = {}
    current: Documented | None = None
    for line in SCHEMA_PATH.read_text(encoding="utf-8").splitlines():
        if head := re.match(r"CREATE (?:TABLE|VIEW) (\w+) .*?-- (.+)$", line):
            current = Documented(name=head[1], comment=head[2], columns={})
            found[current.name] = current
        elif current and (column := re.match(r"    (?:.* AS |\) AS |\w+\.)?(\w+)\b[^-]*,? -- (.+)$", line)):
            current.columns[column[1]] = column[2]
    return found


def unit(column: str) -> str:
    """The unit at the end of a column's name, or empty."""
    return next((unit for ending, unit in _UNITS if column.endswith(ending)), "")


# Query planner statistics, which ANALYZE makes, as SQLite creates them.
_STATISTICS = {
    ("table", "sqlite_stat1"): ("sqlite_stat1", "CREATE TABLE sqlite_stat1 ( tbl , idx , stat )"),
    ("table", "sqlite_stat4"): (
        "sqlite_stat4",
        "CREATE TABLE sqlite_stat4 ( tbl , idx , neq , nlt , ndlt , sample )",
    ),
}

_MOST_OBJECTS = 1000

# Literals, names and numbers, other characters; spaces are SQLite's, not all of Unicode's.
_TOKEN = re.compile(r"""('(?:[^']|'')*'|"[^"]*"|[\w$]+|[^ \t\n\f\r])""")
_COMMENT = re.compile(r"""('(?:[^']|'')*'|"[^"]*")|--[^\n]*""")

Objects = dict[tuple[str, str], tuple[str, str | None]]
"""Kind (table, index, view, trigger) and name → its table, and its statement without comments and spaces."""


def schema_differences(found: Objects, version: int, frozen: Mapping[int, str]) -> list[str]:
    """Differences of a schema from kernelcast's of that version: foreign, missing and changed objects.

    The whole statements are compared, with generated columns, constraints, collations and indexed expressions. Of an
    older version the digest is kept (`frozen`) of all but the views, which are replaced and never run.
    """
    ours = _our_objects()
    if len(found) > _MOST_OBJECTS:
        return [f"more than {_MOST_OBJECTS} tables, indexes and views, expected {len(ours)}"]
    found = {key: one for key, one in found.items() if _STATISTICS.get(key) != one}
    known = ours.keys() | ({("view", name) for name in REMOVED_VIEWS} if version in frozen else set())
    foreign = [f"{kind} {name!r} is not kernelcast's" for kind, name in sorted(found.keys() - known)]
    if version in frozen:
        same = schema_digest(found) == frozen[version]
        return foreign or ([] if same else [f"its tables and indexes differ from version {version}"])
    missing = [f"{kind} {name!r} is missing" for kind, name in sorted(ours.keys() - found.keys())]
    changed = [
        f"{kind} {name!r} is not as kernelcast defines it"
        for kind, name in sorted(found.keys() & ours.keys())
        if found[kind, name] != ours[kind, name]
    ]
    return foreign + missing + changed


def schema_digest(objects: Objects) -> str:
    """Digest of all objects but views, 128 bits."""
    lines = [repr((key, objects[key])) for key in sorted(objects) if key[0] != "view"]
    return sha256("\n".join(lines).encode(errors="surrogatepass")).hexdigest()[:32]


def schema_objects(connection: sqlite3.Connection) -> Objects:
    """The objects of a database, slightly more than `_MOST_OBJECTS` at most; only their text is read."""
    rows = connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT ?", (_MOST_OBJECTS + 1,)
    )
    # A number or a blob in the place of a text is never equal to ours.
    return {(str(kind), str(name)): (table, _without_comments(sql)) for kind, name, table, sql in rows}


@cache
def _our_objects() -> Objects:
    with empty_database() as connection:
        return schema_objects(connection)


def read_as_current(connection: sqlite3.Connection) -> None:
    """Let a database of an older version be read as one of this version: its file stays as it is.

    Tables that it lacks are empty ones of the connection's temporary schema, tables with fewer columns are temporary
    views with the columns' defaults, and views are temporary ones too.
    """
    found = schema_objects(connection)
    for kind, name in _our_objects():
        if kind == "view" or (kind == "table" and (kind, name) not in found):
            statement = definitions(kind, name)[name]
            connection.execute(statement.replace("CREATE ", "CREATE TEMP ", 1))
        elif kind == "table":
            [stored, columns] = _columns(connection, name), _our_columns(name)
            if stored.keys() != columns.keys():
                values = [one if one in stored else f"{columns[one] or 'NULL'} AS {one}" for one in columns]
                connection.execute(f"CREATE TEMP VIEW {name} AS SELECT {', '.join(values)} FROM main.{name}")


@cache
def _our_columns(table: str) -> dict[str, str | None]:
    with empty_database() as connection:
        return _columns(connection, table)


def _columns(connection: sqlite3.Connection, table: str) -> dict[str, str | None]:
    """Column → its default as SQL, or None."""
    found = connection.execute("SELECT name, dflt_value FROM pragma_table_info(?)", (table,))
    return dict(found.fetchall())


def _without_comments(sql: object) -> str | None:
    if sql is None:  # an index that a UNIQUE or PRIMARY KEY brings
        return None
    return " ".join(_TOKEN.findall(_COMMENT.sub(lambda found: found[1] or " ", str(sql))))


APPLICATION_ID = 0x4B434442  # "KCDB", as in schema.sql
SCHEMA_VERSION = 10
OLDEST_VERSION = 4

Upgrade = Callable[[sqlite3.Connection], None]
"""Changes the tables of the previous version, in the caller's transaction; the views are dropped."""


def _add_what_is_missing(connection: sqlite3.Connection) -> None:
    """Add the tables, indexes and columns that any older version lacks."""
    found = schema_objects(connection)
    with empty_database() as ours:
        for kind, name, sql in ours.execute("SELECT type, name, sql FROM sqlite_master WHERE type <> 'view'"):
            if sql is not None and (kind, name) not in found:
                connection.execute(sql)
    there = _columns(connection, "event_kind")
    for column in ("grid TEXT NOT NULL DEFAULT ''", "block TEXT NOT NULL DEFAULT ''", "registers INTEGER",
                   "occupancy_percent REAL"):  # fmt: skip
        if column.split()[0] not in there:
            connection.execute(f"ALTER TABLE event_kind ADD COLUMN {column}")


MIGRATIONS: Mapping[int, Upgrade] = {10: _add_what_is_missing}
"""Migrations by the version that they produce."""

FROZEN: Mapping[int, str] = {
    4: "a8c3b411e242773af621d2238267db40",
    5: "36f01e231c59ad4c3cd0b68fd9f3f79f",
    6: "36f01e231c59ad4c3cd0b68fd9f3f79f",
    7: "d2bd9694daf6ee08148dc13ea65845a6",
    8: "e26d51fe8c5d389d298f303a5e8cd1ff",
    9: "b7be336882225f9ba516385c08ccb24b",
}
"""Digests of the tables and indexes of older versions (`schema_digest`): they are compared before anything is read."""


def schema_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, migrations: Mapping[int, Upgrade] = MIGRATIONS) -> None:
    """Apply the migrations that the database still needs, each in a separate transaction.

    A migration that fails or is interrupted leaves the previous version. Two processes may migrate at the same time:
    the second one finds nothing to do. DataError where a row refers to a missing row afterwards.
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
