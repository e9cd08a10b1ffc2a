"""schema.sql: databases are created from it; migrations and checks read its statements, docs its comments."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SCHEMA_PATH = Path(__file__).resolve().parent.parent / "schema.sql"

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
