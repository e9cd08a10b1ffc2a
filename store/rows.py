"""Rows of any table: reading as dictionaries, adding, counting, and verifying against their ids."""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from kernelcast.runtime.bundle.fingerprint import (
    DIGEST_HEX_DIGITS,
    ComputeFingerprint,
    FabricFingerprint,
    SoftwareFingerprint,
    canonical_json,
)
from kernelcast.store.canonical import future_problem, record_digest, utc_moment
from kernelcast.store.runs import IngestedTrace, Source, UnrecognisedKernels
from kernelcast.store.sqlite_errors import NO_RECORD
from kernelcast.store.steps import FailureLog, MeasuredStep, Prediction, PredictorRecord, StepTimes

Row = dict[str, Any]

# Tables with digests as ids, referenced tables first. `operator`, `kernel_name`, `event_kind`, `event_scope` and
# `device_peak` are dictionaries; `sample_flag`, `repetition` and `kernel` belong to samples, `traced_step` and
# `traced_event` to timelines.
CONTENT_TABLES = (
    "hardware", "fabric", "software", "source", "run", "run_note", "sample", "trace", "unrecognised_kernel", "timeline",
    "step", "prediction", "predictor", "failure_log", "step_times",
)  # fmt: skip

FINGERPRINTS: Mapping[str, type[ComputeFingerprint | FabricFingerprint | SoftwareFingerprint]] = {
    "hardware": ComputeFingerprint,
    "fabric": FabricFingerprint,
    "software": SoftwareFingerprint,
}
RECORDS: Mapping[str, type[Any]] = {
    record.table: record
    for record in (
        Source,
        IngestedTrace,
        UnrecognisedKernels,
        MeasuredStep,
        Prediction,
        PredictorRecord,
        FailureLog,
        StepTimes,
    )
}
_OBJECTS = {"causes", "conditions", "model", "options", "components_s", "hyperparameters"}
_LISTS = {"ended_s", "failed_s", "times_s", "repetitions_s", "process_groups"}
JSON_COLUMNS = _OBJECTS | _LISTS | {"vector", "fingerprint"}


def rows(connection: sqlite3.Connection, sql: str, parameters: Sequence[Any] = ()) -> Iterator[Row]:
    """Rows of a query, column → value, one at a time."""
    cursor = connection.execute(sql, parameters)
    names = [column[0] for column in cursor.description]
    for values in cursor:
        yield dict(zip(names, values, strict=True))


def insert(
    connection: sqlite3.Connection, table: str, row: Mapping[str, Any], *, key: str = "id"
) -> int | None:
    """Add a row unless its key exists; values as `stored_value` takes them. Returns the new row's number, or None."""
    # Not INSERT OR IGNORE, which would also ignore rows that break other constraints.
    columns, places = ", ".join(row), ", ".join("?" for _ in row)
    cursor = connection.execute(
        f"INSERT INTO {table} ({columns}) VALUES ({places}) ON CONFLICT ({key}) DO NOTHING",
        [stored_value(value) for value in row.values()],
    )
    return cursor.lastrowid if cursor.rowcount == 1 else None


class Numbers:
    """Row numbers in a table by the key of its rows, looked up or added once."""

    def __init__(self, connection: sqlite3.Connection, table: str, key: str) -> None:
        self._connection, self._table, self._key = connection, table, key
        self._known: dict[str, int | None] = {}

    def find(self, value: str, row: Mapping[str, Any] | None = None) -> int | None:
        """The number of the row with this key, or None; a missing `row` is added first."""
        if value not in self._known:
            if row is not None:
                insert(self._connection, self._table, row, key=self._key)
            found = self._connection.execute(
                f"SELECT number FROM {self._table} WHERE {self._key} = ?", (value,)
            ).fetchone()
            self._known[value] = None if found is None else int(found[0])
        return self._known[value]


def stored_value(value: object) -> object:
    """A value as SQLite stores it: JSON text for lists and dictionaries, 0 or 1 for booleans."""
    if isinstance(value, dict | list | tuple):
        return canonical_json(value)
    return int(value) if isinstance(value, bool) else value


def record_of(table: str, row: Row) -> Any:
    """The record of a row of a table of `RECORDS`, or one of `NO_RECORD`."""
    values = dict(row)
    for name in JSON_COLUMNS & row.keys():
        values[name] = json_value(name, row[name])
    for name in _LISTS & row.keys():
        values[name] = tuple(values[name])
    if table == "step":
        values["recomputation"] = bool(row["recomputation"])
    return RECORDS[table](**{field.name: values[field.name] for field in fields(RECORDS[table])})


def json_value(name: str, text: str) -> Any:
    """The value of a JSON column; ValueError where it is not in the stored form, or not of the column's type."""
    try:
        value = json.loads(text)
        is_canonical = canonical_json(value) == text
    except RecursionError as error:
        raise ValueError(f"{name} is nested too deeply") from error
    if not is_canonical:
        raise ValueError(f"{name} is not in the canonical form (sorted keys, no spaces)")
    if name in _OBJECTS and not isinstance(value, dict):
        raise ValueError(f"{name} is no JSON object")
    return value


def row_problem(table: str, row: Row) -> str | None:
    """Why a row of a content table does not make a record with the same id; None if it does."""
    try:
        return id_problem(row["id"], _id_of(table, row)) or future_problem(row)
    except NO_RECORD as error:
        return str(error) or type(error).__name__


def id_problem(stored: str, found: str) -> str | None:
    """The problem of a stored id, given the id `found` from the content, or None."""
    return None if stored == found else f"content does not match its id, it gives {found}"


def _id_of(table: str, row: Row) -> str:
    if table in FINGERPRINTS:
        return _fingerprint_id(table, row)
    if table == "run_note" or table == "run":
        started_at = row.get("started_at")
        if started_at is not None and utc_moment(started_at, "started_at") != started_at:
            raise ValueError(f"started_at is {started_at!r}, not in the stored form")
        values = {name: value for name, value in row.items() if name != "id"}
        if table == "run":
            values["conditions"] = json_value("conditions", row["conditions"])
        return record_digest(table, values)
    record = record_of(table, row)
    if table == "step" and row["model_name"] != (name := str(record.model.get("name", ""))):
        raise ValueError(f"model_name is {row['model_name']!r}, its model is called {name!r}")
    return str(record.id)


def _fingerprint_id(table: str, row: Row) -> str:
    stated = json_value("fingerprint", row["fingerprint"])
    for name, value in stated.items():
        expected = canonical_json(value) if isinstance(value, list) else value
        if row.get(name) != expected:  # True == 1, as SQLite stores it
            raise ValueError(f"{name} is {row.get(name)!r}, its fingerprint has {expected!r}")
    digest: str = FINGERPRINTS[table].from_dict(stated).digest
    return digest


def content_tables_digest(
    connection: sqlite3.Connection,
    of: Callable[[str], tuple[str, Sequence[Any]]] = lambda table: ("1", ()),
) -> str:
    """Digest of the content, or of the rows that a condition selects per table.

    SHA-256 over a line `TABLE ID` per row, by table (CONTENT_TABLES) and id, its first 128 bits. Ids digest rows
    (a sample's covers its flags, repetitions and kernels). Two databases therefore have equal digests exactly when they
    hold the same measurements, in any order.
    """
    digest = hashlib.sha256()
    for table in CONTENT_TABLES:
        where, parameters = of(table)
        for (row_id,) in connection.execute(f"SELECT id FROM {table} WHERE {where} ORDER BY id", parameters):
            digest.update(f"{table} {row_id}\n".encode())
    return digest.hexdigest()[:DIGEST_HEX_DIGITS]


def row_counts(connection: sqlite3.Connection) -> dict[str, int]:
    """Rows per content table, and of flags, repetitions, kernels, and steps and events of timelines."""
    return {
        table: int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
        for table in (*CONTENT_TABLES, "sample_flag", "repetition", "kernel", "traced_step", "traced_event")
    }
