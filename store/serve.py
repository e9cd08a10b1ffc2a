"""A database in the browser: Datasette with titles, units and the questions of docs/sql.md (extra `datasette`)."""

import sqlite3
from pathlib import Path
from typing import Any

import uvicorn
from datasette import hookimpl
from datasette.app import Datasette
from datasette.plugins import pm

from kernelcast.store.database import Database
from kernelcast.store.database_file import DEFAULT_MAX_SIZE_BYTES
from kernelcast.store.questions import QUESTIONS
from kernelcast.store.schema_comments import documented, unit
from kernelcast.store.trace_questions import TRACE_QUESTIONS

HOST = "127.0.0.1"  # this machine only: there are no passwords
_SETTINGS = {"sql_time_limit_ms": 10_000, "suggest_facets": False, "default_page_size": 50}
_ABOUT = "Measured times of LLM training operators, down to their kernels."


class _ReadOnly:
    """Datasette opens files read-only by itself; this also keeps another's schema from calling functions."""

    @staticmethod
    @hookimpl  # type: ignore[untyped-decorator]
    def prepare_connection(conn: sqlite3.Connection) -> None:
        conn.execute("PRAGMA trusted_schema = OFF")


def prepare(path: str | Path, *, max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES) -> Datasette:
    """Check a database and make the application that shows it.

    Raises:
        DataError: the database is not sound (see `Database.open`).
    """
    path = Path(path)
    with Database.open(path, read_only=True, max_size_bytes=max_size_bytes) as database:
        views = {row["name"] for row in database.query("SELECT name FROM sqlite_master WHERE type = 'view'")}
        columns = {
            name: [row["name"] for row in database.query("SELECT name FROM pragma_table_info(?)", [name])]
            for name in documented()
        }
    if not pm.has_plugin("kernelcast"):
        pm.register(_ReadOnly, name="kernelcast")
    return Datasette([str(path)], metadata=metadata(path, columns, views), settings=_SETTINGS)


def run(application: Datasette, port: int) -> None:
    """Answer on http://127.0.0.1:PORT until interrupted."""
    uvicorn.run(application.app(), host=HOST, port=port, lifespan="on", log_level="warning")


def metadata(path: Path, columns: dict[str, list[str]], views: set[str]) -> dict[str, Any]:
    """Datasette's metadata: titles, what each table and column means, units, and the canned queries."""
    tables = {
        name: {
            "title": f"{name}: {table.comment}" if name in views else name,
            "description": table.comment,
            "columns": {column: text for column, text in table.columns.items() if column in columns[name]},
            "units": {column: unit(column) for column in columns[name] if unit(column)},
        }
        for name, table in documented().items()
    }
    queries = {
        question.name: {
            "title": question.title,
            "description": question.explanation.replace("`", ""),  # shown as it is, not as Markdown
            "sql": question.sql,
        }
        for question in (*QUESTIONS, *TRACE_QUESTIONS)
    }
    about = {"title": f"kernelcast: {path.name}", "description": _ABOUT}
    return {**about, "databases": {path.stem: {**about, "tables": tables, "queries": queries}}}
