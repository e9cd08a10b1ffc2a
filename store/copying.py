"""Copying rows between databases, with every id verified, and merging: a commutative, idempotent union by id."""

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelcast.runtime.bundle.signature import Verified, verify_signed_file
from kernelcast.runtime.errors import DataError, UsageError, one_line
from kernelcast.store.check import checked_rows
from kernelcast.store.connection import connect, foreign_database, transaction
from kernelcast.store.database_file import DEFAULT_MAX_SIZE_BYTES, check_file, publish, unfinished_file
from kernelcast.store.merges import Brought, Merge, file_digest, record_merge, stored_merges
from kernelcast.store.rows import CONTENT_TABLES, content_tables_digest, insert, rows
from kernelcast.store.sample_rows import SampleWriter, stored_samples
from kernelcast.store.sqlite_errors import explanation, reported
from kernelcast.store.timelines import write_timeline
from kernelcast.store.write import write_peaks

# Columns outside the id, whose text depends on the version that wrote them.
_WORDING = {"description"}

Condition = tuple[str, Sequence[Any]]
"""A trusted SQL condition on one table, and its parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which rows of each content table to copy; a table without a condition is copied whole."""

    conditions: Mapping[str, Condition] = field(default_factory=dict)

    def of(self, table: str) -> Condition:
        return self.conditions.get(table, ("1", ()))


def copy_content(
    source: sqlite3.Connection,
    target: sqlite3.Connection,
    *,
    source_path: Path,
    target_path: Path,
    selection: Selection | None = None,
    brought: Brought = lambda table, row_id, is_new: None,
) -> Counter[str]:
    """Add the rows that `target` lacks, in the caller's transactions on both; returns the rows added per table.

    `brought` is told of every row. Memory does not grow with the databases. The caller must roll back at a DataError: a
    row's content does not match its id, or the target has a different row with the same id.
    """
    copy = _Copy(source, target, source_path, target_path, brought, SampleWriter(target))
    selection = selection or Selection()
    with reported(source_path):
        copy.operators()
        added = Counter({table: copy.of(table, *selection.of(table)) for table in CONTENT_TABLES})
    with reported(target_path):
        write_peaks(target)
    return added


@dataclass(frozen=True, slots=True)
class _Copy:
    source: sqlite3.Connection
    target: sqlite3.Connection
    source_path: Path
    target_path: Path
    brought: Brought
    writer: SampleWriter

    def operators(self) -> None:
        """Add operators of other versions of kernelcast; their titles are not compared."""
        for row in rows(self.source, "SELECT * FROM operator ORDER BY name"):
            with self._writing("operator"):
                insert(self.target, "operator", row, key="name")
            [there] = rows(self.target, "SELECT features FROM operator WHERE name = ?", [row["name"]])
            if there["features"] != row["features"]:
                raise DataError(
                    f"{self.source_path}: operator {row['name']}: found features {row['features']}, "
                    f"expected {there['features']}; nothing was stored"
                )

    def of(self, table: str, where: str, parameters: Sequence[Any]) -> int:
        """Add the selected rows of a content table; returns how many were new."""
        added = 0
        for row_id, content, problem in checked_rows(self.source, table, where, parameters):
            if problem is not None:
                raise DataError(
                    f"{self.source_path}: {table} {one_line(str(row_id))}: {problem}; nothing was stored"
                )
            with self._writing(table):
                is_new = self._add(table, row_id, content)
                self.brought(table, row_id, is_new)
            added += is_new
            if not is_new and not self._is_same(table, row_id, content):
                raise DataError(
                    f"{self.target_path}: {table} {one_line(row_id)}: differs from the row of the same id in "
                    f"{self.source_path}; nothing was stored"
                )
        with self._writing(table):
            self.writer.flush()
        return added

    def _add(self, table: str, row_id: str, content: Any) -> bool:
        match table:
            case "sample":
                return self.writer.add(content)
            case "timeline":
                return write_timeline(self.target, content, timeline_id=row_id)
            case _:
                return insert(self.target, table, content) is not None

    def _is_same(self, table: str, row_id: str, content: Any) -> bool:
        """Whether the target's row of this id has the same content.

        An id of a timeline digests trace, steps and events: clock, collectives and waits are not compared.
        """
        if table == "sample":
            return [content] == list(stored_samples(self.target, "id = ?", [row_id]))
        if table == "timeline":
            return True
        [there] = rows(self.target, f"SELECT * FROM {table} WHERE id = ?", [row_id])
        return all(there[name] == content[name] for name in content.keys() - _WORDING)

    @contextmanager
    def _writing(self, table: str) -> Iterator[None]:
        """Name the file of an error: the source for rows that break the schema, else the target."""
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise DataError(
                f"{self.source_path}: {table}: a row breaks the schema ({error}); nothing was stored"
            ) from error
        except sqlite3.Error as error:
            raise DataError(f"{self.target_path}: {explanation(error)}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Rows that a merge added, per source and table, and the content digest of the result."""

    added: tuple[tuple[Path, Counter[str]], ...]
    content_digest: str
    merges: tuple[Merge, ...] = ()  # all of the result, also earlier ones


def merge_databases(
    sources: Sequence[str | Path],
    into: str | Path,
    *,
    max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES,
    allowed_signers: Path | None = None,
    signer: str = "",
    verified: Mapping[Path, Verified] | None = None,
) -> Merged:
    """Add all rows of `sources` to the database `into`, which is created if it is missing.

    One transaction: an error or an interruption leaves `into` unchanged (or absent). `into` may be one of the sources.
    Sources are not written, and memory does not grow with the databases. Every added row knows the merge (`merges`).
    With `allowed_signers`, every source needs a signature of one of them, or of `signer` (`verify_signed_file`).
    `verified` are sources whose digests were verified already, with their signer (empty: not signed).

    Raises:
        UsageError: `sources` is empty.
        DataError: a source is no sound kernelcast database (see `foreign_database`), a row's content does not
            match its id or differs between two databases; or `into` cannot be written.
    """
    if not sources:
        raise UsageError("merge: found no database, expected at least one")
    paths, target = [Path(source) for source in sources], Path(into)
    for path in paths:
        check_file(path)  # report a missing source before creating the target

    def signed(path: Path) -> Verified | None:
        if allowed_signers is not None:
            return verify_signed_file(path, allowed_signers, signer=signer)
        return (verified or {}).get(path)

    if target.exists():
        check_file(target)
        return _merge(paths, target, target, max_size_bytes, signed)
    with unfinished_file(target) as unfinished:
        merged = _merge(paths, unfinished, target, max_size_bytes, signed)
        if not publish(unfinished, target):
            raise DataError(f"{target}: appeared while merging; nothing was stored in it, merge again")
    return merged


def _merge(
    paths: Sequence[Path],
    file: Path,
    target: Path,
    max_size_bytes: int,
    signed: Callable[[Path], Verified | None],
) -> Merged:
    added = []
    with reported(target), closing(connect(file, read_only=False)) as connection:
        # With the default of 2 MB, a large merge reads its indexes from the disk again and again.
        connection.execute("PRAGMA cache_size = -65536")  # 64 MiB, whatever the size of the databases
        with transaction(connection):
            for path in paths:
                added.append((path, _add(path, connection, file, target, max_size_bytes, signed(path))))
            digest, merges = content_tables_digest(connection), tuple(stored_merges(connection))
    return Merged(added=tuple(added), content_digest=digest, merges=merges)


def _add(
    path: Path,
    connection: sqlite3.Connection,
    file: Path,
    target: Path,
    max_size_bytes: int,
    verified: Verified | None,
) -> Counter[str]:
    if os.path.samefile(path, file):
        return Counter()
    with foreign_database(path, max_size_bytes=max_size_bytes) as source:
        digest = file_digest(path)
        if verified is not None and verified.bundle_digest != digest:
            raise DataError(f"{path}: was changed since it was verified; nothing was stored")
        brought = record_merge(connection, digest, "" if verified is None else verified.signer)
        return copy_content(source, connection, source_path=path, target_path=target, brought=brought)
