"""A database in Datasette, with titles, units and the questions of docs/sql.md (extra `datasette`)."""

import asyncio
import sqlite3
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from datasette import hookimpl
from datasette.app import Datasette
from datasette.plugins import pm
from starlette.types import ASGIApp, Receive, Scope, Send

from kernelcast.runtime.errors import shown
from kernelcast.serve.http_server import Listener, serving
from kernelcast.serve.limits import Limits
from kernelcast.serve.messages import OfThisMachine, json_error
from kernelcast.store.database import Database
from kernelcast.store.database_file import DEFAULT_MAX_SIZE_BYTES
from kernelcast.store.querying import questions
from kernelcast.store.schema import documented, unit

_SETTINGS = {"sql_time_limit_ms": 10_000, "suggest_facets": False, "default_page_size": 50}
_ABOUT = "Measured times of LLM training operators, down to their kernels."


_LONGEST_VALUE_BYTES = 1 << 20
_LARGEST_ANSWER_BYTES = 8 << 20  # a page of it takes ten times as much
_HEAP_BYTES = 256 << 20  # of SQLite, in this process
_LONGEST_PATTERN = 1_000  # of LIKE and GLOB, which no time limit ends
_CONNECTIONS = 64
_PAGE_THREADS, _TURNS, _WAITING = 2, 2, 8


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


def prepare(path: str | Path, *, max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES) -> ASGIApp:
    """Check a database (DataError as `Database.open`), and return the application that shows it."""
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
    about = metadata(path, columns, views)
    pages, queries = (
        Datasette([str(path)], metadata=about, settings=_SETTINGS | {"num_sql_threads": threads}).app()
        for threads in (_PAGE_THREADS, _TURNS)
    )
    slow = {*views, *about["databases"][path.stem]["queries"]}
    return OfThisMachine(_Lanes(pages, queries, slow))


def run(application: ASGIApp, listener: Listener, started: Callable[[], None]) -> None:
    """Serve until interrupted; `started` is called when requests are answered from now on."""
    try:
        asyncio.run(serving(application, Limits(connections=_CONNECTIONS), listener.socket, started))
    finally:
        listener.close()


class _Lanes:
    """Two Datasettes of one file: one with pages, and one with what may compute for long, which keeps no page waiting.

    Those are queries in an address, views and questions; `_TURNS` are answered at a time, and `_WAITING` may wait.
    """

    def __init__(self, pages: ASGIApp, queries: ASGIApp, slow: Collection[str]) -> None:
        self._pages, self._queries, self._slow = pages, queries, slow
        self._turns, self._count = asyncio.Semaphore(_TURNS), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer in the lane of the request's address; anything but reading is refused."""
        if scope["type"] != "http":
            return None
        if scope["method"] not in ("GET", "HEAD"):
            error = json_error(
                405, f"method is {shown(scope['method'])}, expected GET", {"allow": "GET, HEAD"}
            )
            return await error(scope, receive, send)
        path = scope["path"]
        name = path.rpartition("/")[2].partition(".")[0]
        if path.startswith("/-/static") or not (scope["query_string"] or name in self._slow):
            return await self._pages(scope, receive, send)
        if self._count >= _TURNS + _WAITING:
            error = json_error(503, f"{self._count} queries are answered or wait", {"retry-after": "10"})
            return await error(scope, receive, send)
        self._count += 1
        try:
            async with self._turns:
                await self._queries(scope, receive, send)
        finally:
            self._count -= 1


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
