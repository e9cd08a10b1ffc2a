"""Differences between two databases: missing rows, new fingerprints, and samples that an upgrade made stale."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from heapq import merge
from itertools import groupby, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any

from kernelcast.store.connection import foreign_database
from kernelcast.store.database_file import DEFAULT_MAX_SIZE_BYTES
from kernelcast.store.rows import CONTENT_TABLES, FINGERPRINTS
from kernelcast.store.sqlite_errors import reading


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldDifference:
    """A field that differs between two fingerprints."""

    name: str
    one: Any
    other: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFingerprint:
    """A fingerprint that only the second database has, and the nearest fingerprint in the first."""

    kind: str  # hardware, fabric or software
    id: str
    description: str
    nearest_id: str | None  # None: the first database has no fingerprint of this kind
    fields: tuple[FieldDifference, ...]  # values of the nearest, then of the new fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """Samples of hardware in both databases, measured with older software than the newest in the two."""

    database: str  # "A" or "B"
    compute_id: str
    hardware: str
    software_id: str
    newest_software_id: str
    samples: int
    fields: tuple[FieldDifference, ...]  # values of the stale, then of the newest software


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The result of `diff_databases`."""

    only_in_a: dict[str, int]  # table → rows
    only_in_b: dict[str, int]
    new_fingerprints: tuple[NewFingerprint, ...]
    stale: tuple[Stale, ...]

    @property
    def is_same_content(self) -> bool:
        return not any(self.only_in_a.values()) and not any(self.only_in_b.values())


def diff_databases(
    a: str | Path, b: str | Path, *, max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES
) -> Difference:
    """Compare two sound databases (`foreign_database`) by the ids of their rows, in constant memory."""
    with reading(Path(b)), reading(Path(a)), ExitStack() as opened:
        first, second = (
            opened.enter_context(foreign_database(Path(path), max_size_bytes=max_size_bytes))
            for path in (a, b)
        )
        counts = {table: _count_missing(first, second, table) for table in CONTENT_TABLES}
        return Difference(
            only_in_a={table: only_a for table, (only_a, _) in counts.items()},
            only_in_b={table: only_b for table, (_, only_b) in counts.items()},
            new_fingerprints=tuple(_new_fingerprints(first, second)),
            stale=tuple(_stale(first, second)),
        )


def _count_missing(a: sqlite3.Connection, b: sqlite3.Connection, table: str) -> tuple[int, int]:
    """Numbers of rows only in `a` and only in `b`, by merging two sorted lists of ids."""
    sql = f"SELECT id FROM {table} ORDER BY id"
    ids = (zip(database.execute(sql), repeat(side)) for side, database in enumerate((a, b)))
    only = [0, 0]
    for _, group in groupby(merge(*ids), key=itemgetter(0)):
        sides = [side for _, side in group]
        if len(sides) == 1:
            only[sides[0]] += 1
    return only[0], only[1]


def _fingerprints(connection: sqlite3.Connection, table: str) -> dict[str, tuple[str, dict[str, Any]]]:
    rows = connection.execute(f"SELECT id, description, fingerprint FROM {table} ORDER BY id")
    return {row_id: (description, json.loads(text)) for row_id, description, text in rows}


def _differing(one: dict[str, Any], other: dict[str, Any]) -> tuple[FieldDifference, ...]:
    return tuple(
        FieldDifference(name=name, one=one.get(name), other=other.get(name))
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    )


def _new_fingerprints(a: sqlite3.Connection, b: sqlite3.Connection) -> Iterator[NewFingerprint]:
    for table in FINGERPRINTS:
        old, new = _fingerprints(a, table), _fingerprints(b, table)
        for row_id in sorted(new.keys() - old.keys()):
            description, fields = new[row_id]
            nearest = min(old, key=lambda i: (len(_differing(old[i][1], fields)), i), default=None)
            yield NewFingerprint(
                kind=table,
                id=row_id,
                description=description,
                nearest_id=nearest,
                fields=() if nearest is None else _differing(old[nearest][1], fields),
            )


# Software per hardware with its samples; the newest software is the last that measured.
_USED = """
    SELECT run.compute_id, run.software_id, count(sample.number) AS samples,
        max(coalesce(sample.measured_at, run.started_at, '')) AS last_at
    FROM sample JOIN run ON run.id = sample.run_id GROUP BY run.compute_id, run.software_id
"""


def _stale(a: sqlite3.Connection, b: sqlite3.Connection) -> Iterator[Stale]:
    hardware = _fingerprints(a, "hardware")
    software = _fingerprints(a, "software") | _fingerprints(b, "software")
    used = {"A": a.execute(_USED).fetchall(), "B": b.execute(_USED).fetchall()}
    both = {row[0] for row in used["A"]} & {row[0] for row in used["B"]}
    for compute_id in sorted(both):
        here = {name: [row[1:] for row in rows if row[0] == compute_id] for name, rows in used.items()}
        newest = max((last_at, software_id) for rows in here.values() for software_id, _, last_at in rows)[1]
        for database, rows in here.items():
            for software_id, samples, _ in sorted(rows):
                if software_id != newest:
                    yield Stale(
                        database=database,
                        compute_id=compute_id,
                        hardware=hardware[compute_id][0],
                        software_id=software_id,
                        newest_software_id=newest,
                        samples=samples,
                        fields=_differing(software[software_id][1], software[newest][1]),
                    )
