"""Which merge brought which rows, and taking a merge back.

A row that a merge added knows the merge, and every later merge whose file holds it too. Rows without a merge are the
database's own. None of this is content: ids, the content digest and exports do not depend on it.
"""

import hashlib
import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.store.canonical import utc_now
from kernelcast.store.connection import connect, transaction
from kernelcast.store.database_file import check_file
from kernelcast.store.rows import CONTENT_TABLES, content_tables_digest, rows
from kernelcast.store.sqlite_errors import reported

# Tables without ids, of the rows that their rows are a part of, in the order of deletion.
_PARTS = {
    "sample": ("kernel", "repetition", "sample_flag"),
    "timeline": ("matched_collective", "host_time", "trace_clock", "traced_event", "traced_step"),
}

Brought = Callable[[str, str, bool], None]
"""Told of a row of a merged file: its table, its id, and whether it is new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """A merged file; `rows` came with it, `into_own_runs` are samples of runs that the database measured itself."""

    id: str
    file_digest: str
    signer: str  # empty: no signature was asked for
    merged_at: str
    rows: int
    into_own_runs: int


def file_digest(path: Path) -> str:
    """SHA-256 of a database's bytes, and of its -wal file's."""
    digest = hashlib.sha256()
    for part in (path, path.with_name(path.name + "-wal")):
        if part.exists():
            with part.open("rb") as file:
                hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def record_merge(connection: sqlite3.Connection, digest: str, signer: str) -> Brought:
    """Note a merge (again: the same one) in the caller's transaction; returns the function that is told of its rows."""
    merge_id = digest[:32]
    connection.execute(
        "INSERT INTO merge (id, file_digest, signer, merged_at) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET signer = iif(excluded.signer = '', signer, excluded.signer)",
        (merge_id, digest, signer, utc_now()),
    )
    [number] = connection.execute("SELECT number FROM merge WHERE id = ?", (merge_id,)).fetchone()

    def brought(table: str, row_id: str, is_new: bool) -> None:
        # A row that is not new is the database's own, unless another merge brought it.
        is_own = (
            "" if is_new else " WHERE EXISTS (SELECT 1 FROM merged_row WHERE table_name = ?1 AND row_id = ?2)"
        )
        connection.execute(
            f"INSERT OR IGNORE INTO merged_row (table_name, row_id, merge_number) SELECT ?1, ?2, ?3{is_own}",
            (table, row_id, number),
        )

    return brought


def stored_merges(connection: sqlite3.Connection) -> list[Merge]:
    """All merges that brought rows, in order."""
    found = rows(
        connection,
        "SELECT id, file_digest, signer, merged_at, count(*) AS rows, (SELECT count(*) FROM merged_row AS one"
        " JOIN sample ON one.table_name = 'sample' AND sample.id = one.row_id"
        " WHERE one.merge_number = merge.number AND NOT EXISTS"
        " (SELECT 1 FROM merged_row AS run WHERE run.table_name = 'run' AND run.row_id = sample.run_id))"
        " AS into_own_runs"
        " FROM merge JOIN merged_row ON merge_number = number GROUP BY number ORDER BY number",
    )
    return [Merge(**row) for row in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reverted:
    """A merge that was taken back: rows removed per table, rows that stay because others refer to them."""

    merge: Merge
    removed: Counter[str]
    kept: int
    content_digest: str


def revert_merge(path: Path, prefix: str) -> Reverted:
    """Take back the merge whose id starts with `prefix`, in one transaction.

    Removed are rows that only this merge brought. A row that a row of the database's own refers to, such as hardware
    that was measured on since, stays and is its own from then on: the content is as if the merge had not been.

    Raises:
        UsageError: no merge, or several, start with `prefix`.
        DataError: the database cannot be opened or written.
    """
    check_file(path)
    with reported(path):
        connection = connect(path, read_only=False)
        try:
            with transaction(connection):
                return _revert(path, connection, prefix)
        finally:
            connection.close()


def _revert(path: Path, connection: sqlite3.Connection, prefix: str) -> Reverted:
    merges = stored_merges(connection)
    found = [one for one in merges if one.id.startswith(prefix)]
    if len(found) != 1:
        known = ", ".join(one.id[:12] for one in merges) or "none"
        raise UsageError(f"{path}: {len(found)} merges start with {prefix!r:.80}, expected one of {known}")
    [merge] = found
    [number] = connection.execute("SELECT number FROM merge WHERE id = ?", (merge.id,)).fetchone()
    removed, kept = Counter[str](), 0
    for table in reversed(CONTENT_TABLES):
        connection.execute("DROP TABLE IF EXISTS temp.gone")
        connection.execute(
            f"CREATE TEMP TABLE gone AS SELECT {'number, ' if table in _PARTS else ''}id FROM main.{table}"
            " WHERE id IN (SELECT row_id FROM main.merged_row WHERE table_name = ?1 GROUP BY row_id"
            f" HAVING min(merge_number) = ?2 AND max(merge_number) = ?2){_unreferenced(connection, table)}",
            (table, number),
        )
        for part in _PARTS.get(table, ()):
            connection.execute(f"DELETE FROM {part} WHERE {table}_number IN (SELECT number FROM temp.gone)")
        removed[table] = connection.execute(
            f"DELETE FROM {table} WHERE id IN (SELECT id FROM temp.gone)"
        ).rowcount
        kept += connection.execute(
            "SELECT count(*) FROM merged_row WHERE table_name = ?1 AND merge_number = ?2 AND row_id NOT IN"
            " (SELECT id FROM temp.gone) AND NOT EXISTS (SELECT 1 FROM merged_row AS other WHERE other.table_name = ?1"
            " AND other.row_id = merged_row.row_id AND other.merge_number <> ?2)",
            (table, number),
        ).fetchone()[0]
    connection.execute("DROP TABLE IF EXISTS temp.gone")
    connection.execute("DELETE FROM merged_row WHERE merge_number = ?", (number,))
    connection.execute("DELETE FROM merge WHERE number = ?", (number,))
    if (dangling := connection.execute("PRAGMA foreign_key_check").fetchone()) is not None:
        raise DataError(f"{path}: {dangling[0]} would have dangling rows; nothing was taken back")
    return Reverted(
        merge=merge, removed=+removed, kept=kept, content_digest=content_tables_digest(connection)
    )


def _unreferenced(connection: sqlite3.Connection, table: str) -> str:
    """SQL: no row of another table, other than its own parts, refers to the row."""
    found = connection.execute(
        "SELECT child.name, key.'from', key.'to' FROM pragma_table_list AS child"
        " JOIN pragma_foreign_key_list(child.name) AS key WHERE child.schema = 'main' AND key.'table' = ?",
        (table,),
    ).fetchall()
    return "".join(
        f" AND {to} NOT IN (SELECT {column} FROM main.{child} WHERE {column} IS NOT NULL)"
        for child, column, to in found
        if child not in _PARTS.get(table, ())
    )
