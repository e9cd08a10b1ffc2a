"""Everything of one kind that a database holds: runs, fingerprints, steps, traces, predictions, predictors."""

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.store.runs import Run, Source
from kernelcast.store.steps import MeasuredStep, Prediction, PredictorRecord
from kernelcast.store.traces import IngestedTrace


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


def read_runs(connection: sqlite3.Connection) -> list[Run]:
    """Every run, in order of id, with the first of its notes (merging can bring several)."""
    sql = (
        "SELECT started_at, kernelcast_version, code_digest, command, plan, compute_id, fabric_id,"
        " software_id, conditions, coalesce(run_note.site, ''), coalesce(run_note.note, ''),"
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


def read_traces(connection: sqlite3.Connection) -> list[IngestedTrace]:
    """Every trace of a real run, in the order of their ids."""
    return [IngestedTrace(**row) for row in _records(connection, "trace", IngestedTrace)]


def read_predictions(connection: sqlite3.Connection) -> list[Prediction]:
    """Every stored prediction, in the order of their ids."""
    return [Prediction(**row) for row in _records(connection, "prediction", Prediction)]


def read_predictors(connection: sqlite3.Connection) -> list[PredictorRecord]:
    """Every trained regressor's record, in the order of their ids."""
    return [PredictorRecord(**row) for row in _records(connection, "predictor", PredictorRecord)]


_JSON_FIELDS = {"model", "options", "repetitions_s", "components_s", "hyperparameters", "process_groups"}


def _records(connection: sqlite3.Connection, table: str, record: type) -> Iterator[dict[str, Any]]:
    names = [field.name for field in fields(record)]
    for values in connection.execute(f"SELECT {', '.join(names)} FROM {table} ORDER BY id"):
        row = dict(zip(names, values, strict=True))
        for name in _JSON_FIELDS & row.keys():
            row[name] = json.loads(row[name])
        if "recomputation" in row:
            row["recomputation"] = bool(row["recomputation"])
        yield row
