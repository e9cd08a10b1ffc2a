"""Rows back into records, and the questions that collection and training ask."""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from kernelcast.runtime.fingerprint import (
    ComputeFingerprint,
    FabricFingerprint,
    SoftwareFingerprint,
    canonical_json,
    content_digest,
)
from kernelcast.runtime.operators import Direction
from kernelcast.store.canonical import plain_mapping
from kernelcast.store.records import Kernel, Repetition, Run, Sample, Source, Status
from kernelcast.store.steps import MeasuredStep, Prediction, PredictorRecord

PointKey = tuple[str, Direction, str, tuple[int, ...]]
"""Operator, direction, dtype, workload vector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """A sample without its repetitions, with what it was measured on: a row of a training set. Times in µs."""

    sample_id: str
    run_id: str
    operator: str
    direction: Direction
    dtype: str
    variant: str
    vector: tuple[int, ...]
    status: Status
    reason: str
    time_us: float | None
    quiet_us: float | None
    spread: float | None
    repetition_count: int
    flops: float | None
    moved_bytes: float | None
    reference_us: float | None
    measured_at: str | None
    compute_id: str
    fabric_id: str | None
    software_id: str
    conditions: Mapping[str, Any]
    source_kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareRow:
    """One kind of device in a database, with the number of its samples."""

    id: str
    description: str
    fingerprint: ComputeFingerprint
    sample_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricRow:
    """One fabric in a database, with the number of its samples."""

    id: str
    description: str
    fingerprint: FabricFingerprint
    sample_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareRow:
    """One set of software versions in a database, with the number of its samples."""

    id: str
    description: str
    fingerprint: SoftwareFingerprint
    sample_count: int


def read_measured_points(connection: sqlite3.Connection, **wanted: Any) -> set[PointKey]:
    """Points that need no measuring again: they have a time, or the device is known not to support them."""
    where, parameters = _where(wanted)
    sql = (
        "SELECT DISTINCT sample.operator, sample.direction, sample.dtype, sample.vector FROM sample"
        " JOIN run ON run.id = sample.run_id"
        f" WHERE sample.status IN ('ok', 'unsupported') AND {where}"
    )
    return {
        (operator, Direction(direction), dtype, tuple(json.loads(vector)))
        for operator, direction, dtype, vector in connection.execute(sql, parameters)
    }


def read_sample_rows(connection: sqlite3.Connection, **wanted: Any) -> list[SampleRow]:
    """Samples that match, in the order of their ids."""
    where, parameters = _where(wanted)
    sql = (
        "SELECT sample.id, sample.run_id, sample.operator, sample.direction, sample.dtype, sample.variant,"
        " sample.vector, sample.status, sample.reason, sample.time_us, sample.quiet_us, sample.spread,"
        " sample.repetition_count, sample.flops, sample.moved_bytes, sample.reference_us, sample.measured_at,"
        " run.compute_id, run.fabric_id, run.software_id, run.conditions, source.kind"
        " FROM sample JOIN run ON run.id = sample.run_id JOIN source ON source.id = run.source_id"
        f" WHERE {where} ORDER BY sample.id"
    )
    names = [field.name for field in fields(SampleRow)]
    rows = []
    for values in connection.execute(sql, parameters):
        row = dict(zip(names, values, strict=True))
        row["direction"] = Direction(row["direction"])
        row["status"] = Status(row["status"])
        row["vector"] = tuple(json.loads(row["vector"]))
        row["conditions"] = json.loads(row["conditions"])
        rows.append(SampleRow(**row))
    return rows


_COLUMNS = {
    "run_id": "sample.run_id",
    "operator": "sample.operator",
    "direction": "sample.direction",
    "dtype": "sample.dtype",
    "variant": "sample.variant",
    "status": "sample.status",
    "compute_id": "run.compute_id",
    "software_id": "run.software_id",
    "fabric_id": "run.fabric_id",
    "conditions": "run.conditions",
}


def _where(wanted: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Conditions for the filters that are given (None: any), and their parameters."""
    conditions, parameters = ["1"], []
    for name, value in wanted.items():
        if value is None:
            continue
        conditions.append(f"{_COLUMNS[name]} = ?")
        is_mapping = isinstance(value, Mapping)
        parameters.append(canonical_json(plain_mapping(value, name)) if is_mapping else str(value))
    return " AND ".join(conditions), parameters


def dataset_digest(rows: Iterable[SampleRow]) -> str:
    """Digest of a set of samples, whatever their order: what a regressor was trained on."""
    return content_digest(sorted({row.sample_id for row in rows}))


def read_samples_in_full(connection: sqlite3.Connection, *, run_id: str | None = None) -> Iterator[Sample]:
    """Every sample (of one run) with repetitions and kernels, one at a time, in the order of their ids."""
    where, parameters = _where({"run_id": run_id})
    columns = (
        "id, number, run_id, operator, direction, dtype, variant, vector, status, reason, time_us, quiet_us,"
        " spread, statistic, repetition_count, flops, moved_bytes, reference_us, measured_at"
    )
    cursor = connection.execute(f"SELECT {columns} FROM sample WHERE {where} ORDER BY id", parameters)
    names = [column[0] for column in cursor.description]
    for values in cursor:
        row = dict(zip(names, values, strict=True))
        del row["id"]
        row["vector"] = tuple(json.loads(row["vector"]))
        yield Sample(repetitions=_repetitions(connection, row.pop("number")), **row)


def _repetitions(connection: sqlite3.Connection, sample_number: int) -> tuple[Repetition, ...]:
    kernels: dict[int, list[Kernel]] = {}
    for index, name, start_us, duration_us, stream in connection.execute(
        "SELECT repetition_index, name, start_us, duration_us, stream FROM kernel"
        " JOIN kernel_name ON kernel_name.number = kernel.name_number"
        " WHERE sample_number = ? ORDER BY repetition_index, sequence",
        (sample_number,),
    ):
        kernel = Kernel(name=name, start_us=start_us, duration_us=duration_us, stream=stream)
        kernels.setdefault(index, []).append(kernel)
    rows = connection.execute(
        "SELECT repetition_index, time_us, start_us FROM repetition WHERE sample_number = ?"
        " ORDER BY repetition_index",
        (sample_number,),
    )
    return tuple(
        Repetition(index=index, time_us=time_us, start_us=start_us, kernels=tuple(kernels.get(index, ())))
        for index, time_us, start_us in rows
    )


def read_runs(connection: sqlite3.Connection) -> list[Run]:
    """Every run, in the order of their ids, with the first of its notes (merging can bring several)."""
    sql = (
        "SELECT started_at, kernelcast_version, code_digest, command, plan, compute_id, fabric_id, software_id,"
        " conditions, coalesce(run_note.site, ''), coalesce(run_note.note, ''),"
        " source.kind, source.name, source.licence, source.file_digest, source.reference"
        " FROM run JOIN source ON source.id = run.source_id"
        " LEFT JOIN run_note ON run_note.id = (SELECT min(id) FROM run_note WHERE run_note.run_id = run.id)"
        " ORDER BY run.id"
    )
    names = (
        "started_at", "kernelcast_version", "code_digest", "command", "plan", "compute_id",
        "fabric_id", "software_id", "conditions", "site", "note",
    )  # fmt: skip
    runs = []
    for values in connection.execute(sql):
        row = dict(zip(names, values[: len(names)], strict=True))
        kind, name, licence, file_digest, reference = values[len(names) :]
        source = Source(kind=kind, name=name, licence=licence, file_digest=file_digest, reference=reference)
        runs.append(Run(**{**row, "conditions": json.loads(row["conditions"])}, source=source))
    return runs


def read_hardware(connection: sqlite3.Connection) -> list[HardwareRow]:
    """Every device, most samples first."""
    return [
        HardwareRow(
            id=row_id,
            description=description,
            fingerprint=ComputeFingerprint.from_dict(json.loads(fingerprint)),
            sample_count=count,
        )
        for row_id, description, fingerprint, count in _counted(connection, "hardware", "compute_id")
    ]


def read_fabrics(connection: sqlite3.Connection) -> list[FabricRow]:
    """Every fabric, most samples first."""
    return [
        FabricRow(
            id=row_id,
            description=description,
            fingerprint=FabricFingerprint.from_dict(json.loads(fingerprint)),
            sample_count=count,
        )
        for row_id, description, fingerprint, count in _counted(connection, "fabric", "fabric_id")
    ]


def read_software(connection: sqlite3.Connection) -> list[SoftwareRow]:
    """Every set of software versions, most samples first."""
    return [
        SoftwareRow(
            id=row_id,
            description=description,
            fingerprint=SoftwareFingerprint.from_dict(json.loads(fingerprint)),
            sample_count=count,
        )
        for row_id, description, fingerprint, count in _counted(connection, "software", "software_id")
    ]


def _counted(connection: sqlite3.Connection, table: str, key: str) -> Iterator[tuple[str, str, str, int]]:
    yield from connection.execute(
        f"SELECT {table}.id, description, fingerprint, count(sample.number) AS samples FROM {table}"
        f" LEFT JOIN run ON run.{key} = {table}.id LEFT JOIN sample ON sample.run_id = run.id"
        f" GROUP BY {table}.id ORDER BY samples DESC, {table}.id"
    )


def read_steps(connection: sqlite3.Connection) -> list[MeasuredStep]:
    """Every measured training step, in the order of their ids."""
    return [MeasuredStep(**row) for row in _records(connection, "step", MeasuredStep)]


def read_predictions(connection: sqlite3.Connection) -> list[Prediction]:
    """Every stored prediction, in the order of their ids."""
    return [Prediction(**row) for row in _records(connection, "prediction", Prediction)]


def read_predictors(connection: sqlite3.Connection) -> list[PredictorRecord]:
    """Every trained regressor's record, in the order of their ids."""
    return [PredictorRecord(**row) for row in _records(connection, "predictor", PredictorRecord)]


_JSON_FIELDS = {"model", "options", "repetitions_s", "components_s", "hyperparameters"}


def _records(connection: sqlite3.Connection, table: str, record: type) -> Iterator[dict[str, Any]]:
    names = [field.name for field in fields(record)]
    for values in connection.execute(f"SELECT {', '.join(names)} FROM {table} ORDER BY id"):
        row = dict(zip(names, values, strict=True))
        for name in _JSON_FIELDS & row.keys():
            row[name] = json.loads(row[name])
        if "recomputation" in row:
            row["recomputation"] = bool(row["recomputation"])
        yield row
