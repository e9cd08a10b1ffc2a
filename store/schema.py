"""schema.sql: databases are created from it; migrations and checks read its statements, docs its comments.

A database's schema is compared with it before any other use, and only its text is read: triggers and views of an
untrusted file would run.
"""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SCHEMA_PATH = Path(__file__).resolve().parent.parent / "schema.sql"

REMOVED_VIEWS = ("rank_time",)
"""Views of older versions, which migrations drop."""

# Units by the end of a column's name, as pint writes them.
_UNITS = (
    ("_us", "us"), ("_bytes", "byte"), ("_gib", "GiB"), ("_mhz", "MHz"), ("_percent", "percent"),
    ("_w", "W"), ("_c", "degC"), ("flops_per_s", ""), ("bytes_per_s", ""), ("_s", "s"),
)  # fmt: skip


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


# Query planner statistics, which ANALYZE makes.
_SQLITES_OWN = re.compile(r"sqlite_stat\d$")

_MOST_TIMES = 10

Key = tuple[str, str]
"""Kind (table, index, view, trigger) and name."""


def schema_differences(connection: sqlite3.Connection) -> list[str]:
    """Differences from schema.sql, one line each: foreign, missing and changed objects.

    Tables are equal if their columns, keys, kinds and CHECK constraints are: the text of a migrated table differs from
    that of a new table. Indexes and views are equal if their text is, without comments and spaces.

    Raises:
        sqlite3.Error: the schema cannot be read.
    """
    many = _too_many(connection)
    if many:
        return many
    found, expected = _objects(connection), _our_objects()
    missing = [f"{kind} {name!r} is missing" for kind, name in sorted(expected.keys() - found.keys())]
    changed = [
        f"{kind} {name!r} is not as kernelcast defines it"
        for kind, name in sorted(found.keys() & expected.keys())
        if found[kind, name] != expected[kind, name]
    ]
    return foreign_objects(connection) + missing + changed


def foreign_objects(connection: sqlite3.Connection) -> list[str]:
    """Tables, indexes, views and triggers outside schema.sql, which could run in a migration, one line each.

    All objects of older versions are also in schema.sql, or are `REMOVED_VIEWS`.
    """
    many = _too_many(connection)
    if many:
        return many
    ours = {*_our_objects(), *(("view", name) for name in REMOVED_VIEWS)}
    found = connection.execute(
        "SELECT type, name, rootpage FROM sqlite_master ORDER BY type, name"
    ).fetchall()
    return [
        f"{kind} {name!r} is not kernelcast's"
        for kind, name, root_page in found
        if not _SQLITES_OWN.match(name)
        and ((kind, name) not in ours or (kind == "table" and not root_page))  # a virtual table has no page
    ]


def _too_many(connection: sqlite3.Connection) -> list[str]:
    """A line if there are many more objects than in schema.sql: comparing tens of thousands takes long."""
    [count] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    ours = len(_our_objects())
    return [f"{count} tables, indexes and views, expected {ours}"] if count > _MOST_TIMES * ours else []


@cache
def _our_objects() -> dict[Key, object]:
    with empty_database() as connection:
        return _objects(connection)


def _objects(connection: sqlite3.Connection) -> dict[Key, object]:
    objects: dict[Key, object] = {}
    rows = connection.execute("SELECT type, name, tbl_name, sql, rootpage FROM sqlite_master").fetchall()
    for kind, name, table, sql, root_page in rows:
        if kind == "table" and root_page:  # a virtual table has no page
            objects[kind, name] = (_table_shape(connection, name), _checks(sql))
        else:
            objects[kind, name] = (table, _without_comments(sql))
    return objects


def _table_shape(connection: sqlite3.Connection, name: str) -> object:
    kinds = connection.execute(
        "SELECT wr, strict FROM pragma_table_list WHERE schema = 'main' AND name = ?", (name,)
    ).fetchall()
    columns = connection.execute("SELECT * FROM pragma_table_xinfo(?)", (name,)).fetchall()
    keys = connection.execute("SELECT * FROM pragma_foreign_key_list(?)", (name,)).fetchall()
    return kinds, columns, keys


def _checks(sql: str | None) -> list[str]:
    """The CHECK constraints of a table, sorted, without spaces."""
    text, found = re.sub(r"[\s\"]+", "", _without_comments(sql) or ""), []
    for begin in re.finditer(r"CHECK\(", text):
        depth, place = 1, begin.end()
        while depth and place < len(text):
            depth += {"(": 1, ")": -1}.get(text[place], 0)
            place += 1
        found.append(text[begin.end() : place - 1])
    return sorted(found)


def _without_comments(sql: str | None) -> str | None:
    if sql is None:  # an index that a UNIQUE or PRIMARY KEY brings
        return None
    lines = (line.partition("--")[0] for line in sql.splitlines())
    return " ".join(" ".join(lines).split())
