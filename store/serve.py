"""A database in Datasette, with titles, units and the questions of docs/sql.md (extra `datasette`)."""

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn
from datasette import hookimpl
from datasette.app import Datasette
from datasette.plugins import pm

from kernelcast.runtime.errors import shown
from kernelcast.runtime.host_header import names_this_machine
from kernelcast.store.database import Database
from kernelcast.store.database_file import DEFAULT_MAX_SIZE_BYTES
from kernelcast.store.querying import questions
from kernelcast.store.schema import documented, unit

HOST = "127.0.0.1"  # this machine only: there are no passwords
_SETTINGS = {"sql_time_limit_ms": 10_000, "suggest_facets": False, "default_page_size": 50}
_ABOUT = "Measured times of LLM training operators, down to their kernels."


_LONGEST_VALUE_BYTES = 1 << 20
_LARGEST_ANSWER_BYTES = 8 << 20  # a page of it takes ten times as much
_HEAP_BYTES = 256 << 20  # of SQLite, in this process
_LONGEST_PATTERN = 1_000  # of LIKE and GLOB, which no time limit ends
_CONNECTIONS = 64


class _Limits:
    """Limits of one query. Datasette itself opens files read-only and limits the time."""

    @staticmethod
    @hookimpl  # type: ignore[untyped-decorator]
    def prepare_connection(conn: sqlite3.Connection) -> None:
        conn.execute("PRAGMA trusted_schema = OFF")
        conn.execute(f"PRAGMA hard_heap_limit = {_HEAP_BYTES}")
        conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE_BYTES)
        conn.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, _LONGEST_PATTERN)
        conn.row_factory = _counted_rows()


def _counted_rows() -> Callable[[sqlite3.Cursor, tuple[Any, ...]], sqlite3.Row]:
    """A row factory that ends an answer above the size limit, for one connection with one query at a time."""
    asked, size = 0, 0

    def row(cursor: sqlite3.Cursor, values: tuple[Any, ...]) -> sqlite3.Row:
        nonlocal asked, size
        if id(cursor) != asked:
            asked, size = id(cursor), 0
        size += sum(len(value) if isinstance(value, str | bytes) else 8 for value in values)
        if size > _LARGEST_ANSWER_BYTES:
            asked = 0
            raise sqlite3.OperationalError(f"the answer is larger than {_LARGEST_ANSWER_BYTES} bytes")
        return sqlite3.Row(cursor, values)

    return row


def prepare(path: str | Path, *, max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES) -> Datasette:
    """Check a database and return the application that shows it.

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
        pm.register(_Limits, name="kernelcast")
        # With rich installed, Datasette prints a long traceback for each refused query.
        setattr(pm.get_plugin("datasette.handle_exception"), "rich", None)  # noqa: B010
    return Datasette([str(path)], metadata=metadata(path, columns, views), settings=_SETTINGS)


def run(application: Datasette, port: int) -> None:
    """Serve http://127.0.0.1:PORT until interrupted."""
    uvicorn.run(
        _local(application.app()),
        host=HOST,
        port=port,
        lifespan="on",
        log_level="warning",
        limit_concurrency=_CONNECTIONS,
    )


Asgi = Callable[[dict[str, Any], Any, Callable[[dict[str, Any]], Awaitable[None]]], Awaitable[None]]


def _local(inner: Asgi) -> Asgi:
    """Refuse requests with a foreign Host header: other sites could read the database by DNS rebinding."""

    async def checked(
        scope: dict[str, Any], receive: Any, send: Callable[[dict[str, Any]], Awaitable[None]]
    ) -> None:
        hosts = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"host"]
        if scope["type"] == "lifespan" or all(map(names_this_machine, hosts)):
            return await inner(scope, receive, send)
        text = f"Host is {shown(hosts[0])}, expected localhost or 127.0.0.1\n".encode()
        headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": text})
        return None

    return checked


def metadata(path: Path, columns: dict[str, list[str]], views: set[str]) -> dict[str, Any]:
    """Datasette's metadata: titles, descriptions and units of tables and columns, and canned queries."""
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
        for question in (*questions("questions.sql"), *questions("trace_questions.sql"))
    }
    about = {"title": f"kernelcast: {path.name}", "description": _ABOUT}
    return {**about, "databases": {path.stem: {**about, "tables": tables, "queries": queries}}}
