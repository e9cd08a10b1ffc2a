"""Merging: a union of rows by id, which is commutative, associative and idempotent."""

import os
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.store.connection import connect, foreign_database, transaction
from kernelcast.store.copying import copy_content
from kernelcast.store.database_file import DEFAULT_MAX_SIZE_BYTES, check_file, publish, unfinished_file
from kernelcast.store.rows import content_tables_digest
from kernelcast.store.sqlite_errors import reported


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Rows that a merge added, per source and table, and the content digest of the result."""

    added: tuple[tuple[Path, Counter[str]], ...]
    content_digest: str


def merge_databases(
    sources: Sequence[str | Path], into: str | Path, *, max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES
) -> Merged:
    """Add all rows of `sources` to the database `into`, which is created if it is missing.

    One transaction: an error or an interruption leaves `into` unchanged (or absent). `into` may be one of the sources.
    Sources are not written, and memory does not grow with the databases.

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
    if target.exists():
        check_file(target)
        return _merge(paths, target, target, max_size_bytes)
    with unfinished_file(target) as unfinished:
        merged = _merge(paths, unfinished, target, max_size_bytes)
        if not publish(unfinished, target):
            raise DataError(f"{target}: appeared while merging; nothing was stored in it, merge again")
    return merged


def _merge(paths: Sequence[Path], file: Path, target: Path, max_size_bytes: int) -> Merged:
    added = []
    with reported(target), closing(connect(file, read_only=False)) as connection:
        # With the default of 2 MB, a large merge reads its indexes from the disk again and again.
        connection.execute("PRAGMA cache_size = -65536")  # 64 MiB, whatever the size of the databases
        with transaction(connection):
            for path in paths:
                added.append((path, _add(path, connection, file, target, max_size_bytes)))
            digest = content_tables_digest(connection)
    return Merged(added=tuple(added), content_digest=digest)


def _add(
    path: Path, connection: sqlite3.Connection, file: Path, target: Path, max_size_bytes: int
) -> Counter[str]:
    if os.path.samefile(path, file):
        return Counter()
    with foreign_database(path, max_size_bytes=max_size_bytes) as source:
        return copy_content(source, connection, source_path=path, target_path=target)
