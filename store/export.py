"""Exporting a part of a database as a new database."""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelcast.runtime.bundle.fingerprint import DESCRIBED
from kernelcast.runtime.errors import DataError, UsageError, alternatives
from kernelcast.runtime.operators import OPERATORS
from kernelcast.store.canonical import utc_moment
from kernelcast.store.connection import connect, foreign_database, transaction
from kernelcast.store.copying import Condition, Selection, copy_content
from kernelcast.store.database_file import DEFAULT_MAX_SIZE_BYTES, publish, unfinished_file
from kernelcast.store.rows import content_tables_digest
from kernelcast.store.sqlite_errors import reported


@dataclass(frozen=True, slots=True, kw_only=True)
class Subset:
    """Which measurements to export: every given condition has to match.

    `since` (inclusive) and `until` (exclusive) are UTC dates or moments, ISO-8601, of the measurement; with either,
    rows without a date (some imports) are left out. `anonymous` drops site names and notes.
    """

    operators: Sequence[str] = ()
    hardware: str = ""  # start of a compute id
    since: str = ""
    until: str = ""
    anonymous: bool = False

    def __post_init__(self) -> None:
        if self.hardware.strip("0123456789abcdef") or len(self.hardware) > 32:
            raise UsageError(f"hardware: found {self.hardware!r}, expected the start of a hardware id")
        for name in ("since", "until"):
            if text := getattr(self, name):
                moment = f"{text}T00:00:00Z" if len(text) == len("2026-01-31") else text
                object.__setattr__(self, name, utc_moment(moment, name))

    @property
    def is_everything(self) -> bool:
        """Whether all measurements are selected, with or without notes."""
        return not (self.operators or self.hardware or self.since or self.until)

    def sample_condition(self) -> Condition:
        """SQL about `sample`."""
        return self._condition("sample", is_of_operators=True)

    def selection(self) -> Selection:
        """The rows to copy: the measurements, and all rows that they refer to."""
        conditions: dict[str, Condition] = {"sample": self.sample_condition()}
        for table in ("step", "trace"):  # steps and traces are not measurements of one operator
            conditions[table] = ("0", ()) if self.operators else self._condition(table)
        where, parameters = conditions["trace"]
        conditions["unrecognised_kernel"] = (f"trace_id IN (SELECT id FROM trace WHERE {where})", parameters)
        conditions["timeline"] = conditions["unrecognised_kernel"]
        where, parameters = conditions["step"]
        conditions["prediction"] = (f"step_id IN (SELECT id FROM step WHERE {where})", parameters)
        conditions["predictor"] = self._condition(
            "predictor", moment="trained_at", device="{}", is_of_operators=True
        )
        if not self.is_everything:
            conditions |= self._referred_to(conditions)
        if self.anonymous:
            conditions["run_note"] = ("0", ())
        return Selection(conditions=conditions)

    def _condition(
        self,
        table: str,
        *,
        moment: str = "measured_at",
        device: str = "run_id IN (SELECT id FROM run WHERE {})",
        is_of_operators: bool = False,
    ) -> Condition:
        where, parameters = ["1"], list[Any]()
        if self.hardware:
            where.append(device.format("substr(compute_id, 1, ?) = ?"))
            parameters += [len(self.hardware), self.hardware]
        if is_of_operators and self.operators:
            where.append(f"{table}.operator IN ({', '.join('?' for _ in self.operators)})")
            parameters += self.operators
        for sign, limit in ((">=", self.since), ("<", self.until)):
            if limit:
                where.append(f"{table}.{moment} {sign} ?")
                parameters.append(limit)
        return " AND ".join(where), tuple(parameters)

    @staticmethod
    def _referred_to(conditions: dict[str, Condition]) -> dict[str, Condition]:
        samples, sample_parameters = conditions["sample"]
        steps, step_parameters = conditions["step"]
        traces, trace_parameters = conditions["trace"]
        predictors, predictor_parameters = conditions["predictor"]
        runs = (
            f"run.id IN (SELECT run_id FROM sample WHERE {samples}"
            f" UNION SELECT run_id FROM step WHERE {steps} UNION SELECT run_id FROM trace WHERE {traces})"
        )
        of_runs = (*sample_parameters, *step_parameters, *trace_parameters)

        def either(key: str) -> Condition:
            return (
                f"id IN (SELECT {key} FROM run WHERE {runs}"
                f" UNION SELECT {key} FROM predictor WHERE {predictors})",
                (*of_runs, *predictor_parameters),
            )

        fabrics, of_fabrics = either("fabric_id")
        return {
            "hardware": either("compute_id"),
            # A described fabric belongs to no run. It is small, and always exported.
            "fabric": (f"({fabrics}) OR backend = ?", (*of_fabrics, DESCRIBED)),
            "software": either("software_id"),
            "source": (f"id IN (SELECT source_id FROM run WHERE {runs})", of_runs),
            "run": (runs, of_runs),
            "run_note": (f"run_id IN (SELECT id FROM run WHERE {runs})", of_runs),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The result of an export: rows per table, and free text that stays because it is part of ids."""

    rows: Counter[str]
    content_digest: str
    texts: dict[str, list[str]]


def export_database(
    source: str | Path,
    target: str | Path,
    subset: Subset,
    *,
    max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES,
) -> Exported:
    """Write a part of `source` as the new database `target`. Rows keep their ids, so it can be merged again.

    UsageError for an operator that neither kernelcast nor the database knows; DataError where `target` exists or cannot
    be written, `source` is not sound, or no row matches.
    """
    source, target = Path(source), Path(target)
    if target.exists():
        raise DataError(f"{target}: exists already, expected the name of a new database")
    with foreign_database(source, max_size_bytes=max_size_bytes) as connection:
        check_operators(connection, subset)
        with unfinished_file(target) as unfinished:
            exported = copy_selection(connection, source, unfinished, subset.selection(), named=target)
            if not subset.is_everything and not any(exported.rows.values()):
                raise DataError(f"{source}: nothing in it matches; nothing was written")
            if not publish(unfinished, target):
                raise DataError(f"{target}: appeared meanwhile, expected the name of a new database")
    return exported


def copy_selection(
    connection: sqlite3.Connection, source: Path, empty: Path, selection: Selection, *, named: Path
) -> Exported:
    """Copy rows of an open database into an empty one, a single file; equal rows give equal bytes.

    `named` is what errors call it. DataError where it cannot be written, or a row does not match its id.
    """
    with reported(named):
        with closing(connect(empty, read_only=False)) as new, transaction(new):
            rows = copy_content(connection, new, source_path=source, target_path=named, selection=selection)
            exported = Exported(rows=rows, content_digest=content_tables_digest(new), texts=_texts(new))
        with closing(sqlite3.connect(empty, isolation_level=None)) as new:
            new.execute("PRAGMA journal_mode = DELETE")  # a single file, readable in read-only folders
    return exported


def check_operators(connection: sqlite3.Connection, subset: Subset) -> None:
    """Refuse an unknown operator, which would select nothing: a UsageError names it."""
    known = {row[0] for row in connection.execute("SELECT name FROM operator")} | OPERATORS.keys()
    if unknown := [name for name in subset.operators if name not in known]:
        raise UsageError(f"operator {unknown[0]!r:.80} is unknown, {alternatives(unknown[0], sorted(known))}")


def _texts(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """Free text that cannot be dropped, because ids are digests of it."""
    questions = {
        "source names": "SELECT DISTINCT name FROM source WHERE kind <> 'collector' ORDER BY name",
        "source references": "SELECT DISTINCT reference FROM source WHERE reference <> '' ORDER BY 1",
        "model names": "SELECT DISTINCT model_name FROM step WHERE model_name <> '' ORDER BY 1",
        "failure reasons": "SELECT DISTINCT reason FROM sample WHERE reason <> ''"
        " UNION SELECT reason FROM step WHERE reason <> '' ORDER BY 1",
        "annotations and modules": "SELECT name FROM event_scope ORDER BY 1",
        "process groups": "SELECT DISTINCT process_groups FROM trace WHERE process_groups <> '[]' ORDER BY 1",
    }
    found = {name: [row[0] for row in connection.execute(sql)] for name, sql in questions.items()}
    return {name: texts for name, texts in found.items() if texts}
