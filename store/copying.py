"""Rows from one database into another, every id recomputed on the way: what merging and exporting share."""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelcast.runtime.errors import DataError
from kernelcast.store.children import ChildRows
from kernelcast.store.contents import CONTENT_TABLES
from kernelcast.store.row_ids import row_problem, sample_problem, stored_samples
from kernelcast.store.sqlite_errors import explanation, reported

# Columns that are worded by the version that wrote them and are no part of an id.
_WORDING = {"description"}

Condition = tuple[str, Sequence[Any]]
"""SQL of this package about one table, and its parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which rows of each content table to copy; a table that is not named is copied whole."""

    conditions: Mapping[str, Condition] = field(default_factory=dict)

    def of(self, table: str) -> Condition:
        """The condition on one table."""
        return self.conditions.get(table, ("1", ()))


EVERYTHING = Selection()


def copy_content(
    source: sqlite3.Connection,
    target: sqlite3.Connection,
    *,
    source_path: Path,
    target_path: Path,
    selection: Selection = EVERYTHING,
) -> Counter[str]:
    """Add what `target` lacks, in the caller's transactions on both; answers the rows added per table.

    Memory does not grow with the databases.

    Raises:
        DataError: a row's content does not match its id, or the target has another row under the same id. The
            caller's transaction must then be given up.
    """
    copy = _Copy(source, target, source_path, target_path)
    with reported(source_path):
        copy.operators()
        return Counter(
            {
                table: copy.samples(*selection.of(table))
                if table == "sample"
                else copy.rows(table, *selection.of(table))
                for table in CONTENT_TABLES
            }
        )


@dataclass(frozen=True, slots=True)
class _Copy:
    source: sqlite3.Connection
    target: sqlite3.Connection
    source_path: Path
    target_path: Path

    def operators(self) -> None:
        """Add operators that only other versions of kernelcast know; how they are worded is no content."""
        for row in _rows(self.source, "SELECT * FROM operator ORDER BY name"):
            known = list(_rows(self.target, "SELECT * FROM operator WHERE name = ?", [row["name"]]))
            if not known:
                self._insert("operator", row, "")
            elif (known[0]["features"], known[0]["directions"]) != (row["features"], row["directions"]):
                raise DataError(
                    f"{self.source_path}: operator {row['name']}: found features {row['features']}, "
                    f"expected {known[0]['features']}; nothing was stored"
                )

    def rows(self, table: str, where: str, parameters: Sequence[Any]) -> int:
        """Add the rows of one table; answers how many were new."""
        added = 0
        for row in _rows(self.source, f"SELECT * FROM {table} WHERE {where} ORDER BY id", parameters):
            if (problem := row_problem(table, row)) is not None:
                raise self._corrupt(table, row["id"], problem)
            if self._insert(table, row, "ON CONFLICT (id) DO NOTHING"):
                added += 1
                continue
            [there] = _rows(self.target, f"SELECT * FROM {table} WHERE id = ?", [row["id"]])
            if any(there[name] != row[name] for name in row.keys() - _WORDING):
                raise self._conflict(table, row["id"])
        return added

    def samples(self, where: str, parameters: Sequence[Any]) -> int:
        """Add samples with their flags, repetitions and kernels; answers how many were new."""
        children = ChildRows(self.target)
        added = 0
        for sample in stored_samples(self.source, where, parameters):
            if (problem := sample_problem(sample)) is not None:
                raise self._corrupt("sample", sample.id, problem)
            row = {"id": sample.id, **sample.columns}
            if number := self._insert("sample", row, "ON CONFLICT (id) DO NOTHING"):
                added += 1
                with self._writing("sample"):
                    children.add_flags(number, sample.flags)
                    for r in sample.repetitions:
                        children.add(number, r.index, r.time_us, r.start_us, r.kernels)
                continue
            [there] = stored_samples(self.target, "id = ?", [sample.id])
            if there != sample:
                raise self._conflict("sample", sample.id)
        with self._writing("sample"):
            children.flush()
        return added

    def _insert(self, table: str, row: Mapping[str, Any], otherwise: str) -> int:
        """Answers the new row's number, 0 where none was added. Tables and columns are those of schema.sql."""
        columns, places = ", ".join(row), ", ".join("?" for _ in row)
        sql = f"INSERT INTO {table} ({columns}) VALUES ({places}) {otherwise}"
        with self._writing(table):
            cursor = self.target.execute(sql, list(row.values()))
        return cursor.lastrowid or 0 if cursor.rowcount == 1 else 0

    @contextmanager
    def _writing(self, table: str) -> Iterator[None]:
        """Say whose fault an error is: rows that our schema refuses are the source's, the rest the target's."""
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise DataError(
                f"{self.source_path}: {table}: a row breaks the schema ({error}); nothing was stored"
            ) from error
        except sqlite3.Error as error:
            raise DataError(f"{self.target_path}: {explanation(error)}") from error

    def _corrupt(self, table: str, row_id: str, problem: str) -> DataError:
        return DataError(f"{self.source_path}: {table} {row_id}: {problem}; nothing was stored")

    def _conflict(self, table: str, row_id: str) -> DataError:
        return DataError(
            f"{self.target_path}: {table} {row_id}: differs from the row of the same id in "
            f"{self.source_path}; nothing was stored"
        )


def _rows(
    connection: sqlite3.Connection, sql: str, parameters: Sequence[Any] = ()
) -> Iterator[dict[str, Any]]:
    cursor = connection.execute(sql, parameters)
    names = [column[0] for column in cursor.description]
    for values in cursor:
        yield dict(zip(names, values, strict=True))
