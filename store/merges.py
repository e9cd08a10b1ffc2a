"""Which merge brought which rows, and taking a merge back.

A row that a merge added knows the merge, and every later merge whose file holds it too. Rows without a merge are the
database's own. None of this is content: ids, the content digest and exports do not depend on it.
"""

import hashlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from kernelcast.runtime.bundle.fingerprint import content_digest
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.store.canonical import utc_now
from kernelcast.store.connection import connect, transaction
from kernelcast.store.database_file import check_file
from kernelcast.store.rows import CONTENT_TABLES, content_tables_digest, rows
from kernelcast.store.sqlite_errors import reported

# Tables without ids, of the rows that their rows are a part of, in the order of deletion.
_PARTS = {
    "sample": ("kernel", "repetition", "sample_flag"),
    "timeline": (
        "matched_collective",
        "lost_collective",
        "stream_wait",
        "host_time",
        "trace_clock",
        "traced_event",
        "traced_step",
    ),
}

Brought = Callable[[str, str, bool], None]
"""Told of a row of a merged file: its table, its id, and whether it is new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """A merged file; `rows` came with it, `into_own_runs` are samples of runs that the database measured itself."""

    id: str
    file_digest: str
    signer: str  # empty: no signature was required
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
    """Record a merge in the caller's transaction (a repeated one once); returns the function that records its rows."""
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
class TrainedBundle:
    """A bundle whose training the database recorded; `operators` had samples of a reverted merge."""

    digest: str
    trained_at: str
    operators: tuple[str, ...]

    def __str__(self) -> str:
        named = ", ".join(self.operators)
        return f"bundle {self.digest[:12]} of {self.trained_at[:10]} was trained on its rows: {named}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reverted:
    """Reverted merges: rows removed per table, rows that stay because others refer to them.

    `bundles` were trained with this database when it had samples of theirs.
    """

    merges: tuple[Merge, ...]
    removed: Counter[str]
    kept: int
    bundles: tuple[TrainedBundle, ...]
    content_digest: str


def revert_merge(path: Path, prefix: str) -> Reverted:
    """Revert the merge whose id starts with `prefix`, in one transaction.

    Removed are rows that only this merge brought. A row that a row of the database's own refers to, such as hardware
    that was measured on since, stays and is its own from then on: the content is as if the merge had not been.

    Raises:
        UsageError: no merge, or several, start with `prefix`.
        DataError: the database cannot be opened or written.
    """

    def chosen(merges: Sequence[Merge]) -> list[Merge]:
        found = [one for one in merges if one.id.startswith(prefix)]
        if len(found) != 1:
            known = ", ".join(one.id[:12] for one in merges) or "none"
            raise UsageError(
                f"{path}: {len(found)} merges start with {prefix!r:.80}, expected one of {known}"
            )
        return found

    return revert_merges(path, chosen)


def revert_merges(path: Path, chosen: Callable[[Sequence[Merge]], Sequence[Merge]]) -> Reverted:
    """Revert the merges that `chosen` selects, in one transaction; as `revert_merge`."""
    check_file(path)
    with (
        reported(path),
        closing(connect(path, read_only=False)) as connection,
        transaction(connection),
    ):
        merges = tuple(chosen(stored_merges(connection)))
        numbers = [
            connection.execute("SELECT number FROM merge WHERE id = ?", (merge.id,)).fetchone()[0]
            for merge in merges
        ]
        bundles = _bundles_of(connection, numbers)
        removed, kept = Counter[str](), 0
        for number in numbers:
            kept += _revert(connection, number, removed)
        if (dangling := connection.execute("PRAGMA foreign_key_check").fetchone()) is not None:
            raise DataError(f"{path}: {dangling[0]} would have dangling rows; nothing was reverted")
        return Reverted(
            merges=merges,
            removed=+removed,
            kept=kept,
            bundles=bundles,
            content_digest=content_tables_digest(connection),
        )


def _bundles_of(connection: sqlite3.Connection, numbers: Sequence[int]) -> tuple[TrainedBundle, ...]:
    """Bundles that may have been trained on samples that only these merges brought.

    A bundle knows the digest of its samples alone: where the others of its operators, devices and software give the
    same digest, it was trained without these.
    """
    merges = ", ".join(map(str, numbers)) or "NULL"
    samples: dict[tuple[str, str, str], dict[str, tuple[str, bool]]] = {}
    for digest, trained_at, dataset, operator, sample, is_theirs in connection.execute(
        "SELECT DISTINCT bundle_digest, trained_at, dataset_digest, predictor.operator, sample.id,"
        " NOT EXISTS (SELECT 1 FROM merged_row WHERE table_name = 'sample' AND row_id = sample.id"
        f" AND merge_number NOT IN ({merges})) AND EXISTS (SELECT 1 FROM merged_row"
        f" WHERE table_name = 'sample' AND row_id = sample.id AND merge_number IN ({merges}))"
        " FROM predictor JOIN sample USING (operator, dtype) JOIN run ON run.id = sample.run_id"
        " WHERE sample.status = 'ok' AND coalesce(measured_at, '') <= trained_at AND"
        " (predictor.compute_id = run.compute_id AND predictor.software_id = run.software_id"
        " OR predictor.fabric_id = run.fabric_id)"
        f" AND EXISTS (SELECT 1 FROM merged_row WHERE merge_number IN ({merges}) AND table_name = 'sample')"
    ):
        samples.setdefault((digest, trained_at, dataset), {})[sample] = operator, bool(is_theirs)
    found = []
    for (digest, trained_at, dataset), of_bundle in sorted(samples.items()):
        theirs = {operator for operator, is_theirs in of_bundle.values() if is_theirs}
        others = sorted(sample for sample, (_, is_theirs) in of_bundle.items() if not is_theirs)
        if theirs and content_digest(others) != dataset:
            found.append(TrainedBundle(digest=digest, trained_at=trained_at, operators=tuple(sorted(theirs))))
    return tuple(found)


def _revert(connection: sqlite3.Connection, number: int, removed: Counter[str]) -> int:
    """Remove the rows that only this merge brought; returns the number of those that stay."""
    kept = 0
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
        removed[table] += connection.execute(
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
    return kept


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
