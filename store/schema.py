"""schema.sql, the present schema: databases are created from it, and migrations and checks read what it defines."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

SCHEMA_PATH = Path(__file__).resolve().parent.parent / "schema.sql"


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
    """A database of the present schema in memory."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        create_schema(connection)
        yield connection


def definitions(kind: str, *tables: str) -> dict[str, str]:
    """Statements of schema.sql by name: its views, or the tables or indexes of these tables."""
    with empty_database() as connection:
        found = connection.execute(
            "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = ? AND sql IS NOT NULL", (kind,)
        )
        return {name: sql for name, table, sql in found if kind == "view" or table in tables}
