"""Read-only SQL of users.

Three mechanisms prevent writing: the file is opened with `mode=ro`, `query_only` is on, and an authorizer refuses
everything else, such as attaching files, changing settings and loading extensions.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kernelcast.runtime.errors import DataError, nearest_names
from kernelcast.store.connection import foreign_database
from kernelcast.store.database_file import DEFAULT_MAX_SIZE_BYTES
from kernelcast.store.sqlite_errors import reported

_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_READING_PRAGMAS = {"table_list", "table_info", "table_xinfo", "index_list", "index_info", "foreign_key_list"}

DEFAULT_TIME_LIMIT_S = 300.0

_STEPS_BETWEEN_TURNS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Columns and rows of a query; rows are read as they are iterated."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


class _Clock:
    """The time that SQLite spends, without the time of the caller between rows."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s, self._spent_s = limit_s, 0.0
        self._begin_s = time.monotonic()

    def is_over(self) -> bool:
        """Whether the limit is reached; SQLite's progress handler calls it."""
        return self._spent_s + time.monotonic() - self._begin_s > self.limit_s

    def rows(self, cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
        """The cursor's rows; the time of each is counted."""
        while True:
            self._begin_s = time.monotonic()
            row = cursor.fetchone()
            self._spent_s += time.monotonic() - self._begin_s
            if row is None:
                return
            yield row


@contextmanager
def answer(
    path: str | Path,
    sql: str,
    *,
    max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
) -> Iterator[Answer]:
    """Run one SELECT; yield its columns and rows.

    DataError where the statement is wrong, not a query, does more than read, or takes longer than `time_limit_s`; or
    the database is not sound.
    """
    path, clock = Path(path), _Clock(time_limit_s)
    with foreign_database(path, max_size_bytes=max_size_bytes) as connection, reported(path):
        connection.set_authorizer(_authorize)
        # SQLite calls Python between its steps, so that Ctrl-C ends a long query.
        connection.set_progress_handler(clock.is_over, _STEPS_BETWEEN_TURNS)
        try:
            with _in_time(path, clock):
                cursor = connection.execute(sql)
                if cursor.description is None:
                    raise DataError(f"{path}: found no statement that answers rows, expected a SELECT")
                connection.set_authorizer(None)  # the snapshot must be able to end
                columns = tuple(column[0] for column in cursor.description)
                yield Answer(columns=columns, rows=clock.rows(cursor))
        except (sqlite3.Warning, sqlite3.ProgrammingError) as error:  # several statements
            several = "one statement" in str(error)
            what = "found several statements, expected one SELECT" if several else str(error)
            raise DataError(f"{path}: {what}") from error
        except sqlite3.DatabaseError as error:
            if "not authorized" in str(error):
                raise DataError(f"{path}: {error}; expected a query that only reads (SELECT)") from error
            _, unknown, name = str(error).partition("no such table: ")
            if unknown and (nearest := nearest_names(name, _tables(connection))):
                raise DataError(f"{path}: {error}, nearest is {nearest[0]}") from error
            raise
        finally:
            connection.set_authorizer(None)
            connection.set_progress_handler(None, 0)


def _tables(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type != 'index'")]


@contextmanager
def _in_time(path: Path, clock: _Clock) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorname", "") != "SQLITE_INTERRUPT":
            raise
        if not clock.is_over():  # Ctrl-C during the progress handler, which cannot raise it
            raise KeyboardInterrupt from error
        raise DataError(
            f"{path}: the query takes longer than {clock.limit_s:g} s (--time-limit raises it)"
        ) from error


def _authorize(action: int, one: str | None, two: str | None, *_: str | None) -> int:
    if action in _READING:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and (two or "").lower() != "load_extension":
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_UPDATE and one == "sqlite_master":
        return sqlite3.SQLITE_OK  # declares a table-valued pragma; the file is read-only
    if action == sqlite3.SQLITE_PRAGMA and (one or "").lower() in _READING_PRAGMAS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


_FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, what its answer means, and the SQL that answers it."""

    name: str  # in addresses
    title: str
    explanation: str
    sql: str


@cache
def questions(file: str) -> tuple[Question, ...]:
    """The questions in a file of this folder, such as questions.sql and trace_questions.sql.

    Blocks that an empty line separates, after the first: `-- NAME: TITLE`, `-- EXPLANATION`, the query with `;`.
    """
    found = []
    for block in (_FOLDER / file).read_text(encoding="utf-8").split("\n\n")[1:]:
        lines = block.strip().splitlines()
        head, *explanation = (line.removeprefix("-- ") for line in lines if line.startswith("-- "))
        name, _, title = head.partition(": ")
        sql = "\n".join(line for line in lines if not line.startswith("-- ")).removesuffix(";")
        found.append(Question(name=name, title=title, explanation=" ".join(explanation), sql=sql))
    return tuple(found)
