"""Rows back into records: samples, and everything of one kind that a database holds."""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, TypedDict, TypeVar

from kernelcast.runtime.bundle.fingerprint import (
    ComputeFingerprint,
    FabricFingerprint,
    SoftwareFingerprint,
    canonical_json,
    content_digest,
)
from kernelcast.runtime.hardware.load import Load
from kernelcast.runtime.operators import Direction
from kernelcast.store.canonical import plain_mapping
from kernelcast.store.records import Sample, Status
from kernelcast.store.rows import FINGERPRINTS, record_of, rows
from kernelcast.store.runs import Run, Source
from kernelcast.store.sample_rows import stored_samples

PointKey = tuple[str, Direction, str, tuple[int, ...]]
"""Operator, direction, dtype, workload vector."""


class PointFilter(TypedDict, total=False):
    """Conditions on measured points that all have to hold; None: any. `conditions` must equal the run's.

    `load` is that of the sample, where what is not stated counts as a burst.
    """

    load: Load | None
    dtype: str | None
    variant: str | None
    fabric_id: str | None
    conditions: Mapping[str, Any] | None


class SampleFilter(PointFilter, total=False):
    """Conditions on samples that all have to hold; None: any."""

    run_id: str | None
    operator: str | None
    role: str | None
    direction: Direction | None
    status: Status | None
    compute_id: str | None
    software_id: str | None


_OF_RUN = ("compute_id", "software_id", "fabric_id", "conditions")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """A sample without its repetitions, with what it was measured on: a row of a training set (µs)."""

    sample_id: str
    run_id: str
    operator: str
    role: str = ""
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
    # Of what has one time: mean of its repetitions without the lowest and the highest tenth; None where unknown.
    inner_mean_us: float | None = None
    load: Load = Load.NOT_STATED
    clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    flags: tuple[tuple[str, str], ...] = ()  # why it is doubtful: flag and detail


_SAMPLE_ROW = (
    "SELECT sample.id AS sample_id, sample.*, run.compute_id, run.fabric_id, run.software_id, run.conditions,"
    " source.kind AS source_kind, CASE sample.direction WHEN 'once' THEN ("
    "SELECT avg(time_us) FROM (SELECT time_us, row_number() OVER (ORDER BY time_us) AS place, count(*) OVER () AS count"
    " FROM repetition WHERE sample_number = sample.number) WHERE place > count / 10 AND place <= count - count / 10"
    ") END AS inner_mean_us,"
    " (SELECT json_group_array(json_array(flag, detail)) FROM"
    " (SELECT flag, detail FROM sample_flag WHERE sample_number = sample.number ORDER BY flag)) AS flags"
    " FROM sample JOIN run ON run.id = sample.run_id JOIN source ON source.id = run.source_id"
    " WHERE {where} ORDER BY sample.id"
)


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


def read_sample_rows(connection: sqlite3.Connection, wanted: SampleFilter) -> list[SampleRow]:
    """Samples that match, in the order of their ids."""
    where, parameters = _where(wanted)
    names = [field.name for field in fields(SampleRow)]
    found = []
    for row in rows(connection, _SAMPLE_ROW.format(where=where), parameters):
        row["direction"] = Direction(row["direction"])
        row["status"] = Status(row["status"])
        row["load"] = Load(row["load"])
        row["vector"] = tuple(json.loads(row["vector"]))
        row["conditions"] = json.loads(row["conditions"])
        row["flags"] = tuple((flag, detail) for flag, detail in json.loads(row["flags"]))
        found.append(SampleRow(**{name: row[name] for name in names}))
    return found


def _where(wanted: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Conditions for the filters that are given, and their parameters."""
    conditions: list[str] = ["1"]
    parameters: list[Any] = []
    for name, value in wanted.items():
        if value is None:
            continue
        if isinstance(value, Load):
            conditions.append(f"(sample.load = '{Load.SUSTAINED}') = ?")
            parameters.append(value.is_sustained)
            continue
        conditions.append(f"{'run' if name in _OF_RUN else 'sample'}.{name} = ?")
        if isinstance(value, Mapping):
            value = canonical_json(plain_mapping(value, name))
        parameters.append(str(value))
    return " AND ".join(conditions), parameters


def dataset_digest(samples: Iterable[SampleRow]) -> str:
    """Digest of a set of samples, whatever their order: what a regressor was trained on."""
    return content_digest(sorted({row.sample_id for row in samples}))


def read_samples_in_full(connection: sqlite3.Connection) -> Iterator[Sample]:
    """Every sample with flags, repetitions and kernels, one at a time, in order of id."""
    for stored in stored_samples(connection, "1", [], order="id"):
        yield stored.sample()


F = TypeVar("F", ComputeFingerprint, FabricFingerprint, SoftwareFingerprint)


@dataclass(frozen=True, slots=True, kw_only=True)
class FingerprintRow(Generic[F]):
    """One kind of device, fabric or set of software versions in a database, with the number of its samples."""

    id: str
    description: str
    fingerprint: F
    sample_count: int


HardwareRow = FingerprintRow[ComputeFingerprint]
FabricRow = FingerprintRow[FabricFingerprint]
SoftwareRow = FingerprintRow[SoftwareFingerprint]


def read_fingerprints(connection: sqlite3.Connection, table: str) -> list[FingerprintRow[Any]]:
    """Every row of `hardware`, `fabric` or `software`, most samples first."""
    key = "compute_id" if table == "hardware" else f"{table}_id"
    return [
        FingerprintRow(
            id=row_id,
            description=description,
            fingerprint=FINGERPRINTS[table].from_dict(json.loads(fingerprint)),
            sample_count=count,
        )
        for row_id, description, fingerprint, count in connection.execute(
            f"SELECT {table}.id, description, fingerprint, count(sample.number) AS samples FROM {table}"
            f" LEFT JOIN run ON run.{key} = {table}.id LEFT JOIN sample ON sample.run_id = run.id"
            f" GROUP BY {table}.id ORDER BY samples DESC, {table}.id"
        )
    ]


def read_runs(connection: sqlite3.Connection) -> list[Run]:
    """Every run, in order of id, with the first of its notes (merging can bring several)."""
    sources = {row.pop("id"): Source(**row) for row in rows(connection, "SELECT * FROM source")}
    sql = (
        "SELECT run.*, coalesce(run_note.site, '') AS site, coalesce(run_note.note, '') AS note FROM run"
        " LEFT JOIN run_note ON run_note.id = (SELECT min(id) FROM run_note WHERE run_note.run_id = run.id)"
        " ORDER BY run.id"
    )
    runs = []
    for row in rows(connection, sql):
        row |= {"conditions": json.loads(row["conditions"]), "source": sources[row["source_id"]]}
        runs.append(Run(**{field.name: row[field.name] for field in fields(Run)}))
    return runs


def read_records(connection: sqlite3.Connection, table: str) -> list[Any]:
    """Every record of a table of `RECORDS` (steps, predictions, predictors, traces), in the order of their ids."""
    return [record_of(table, row) for row in rows(connection, f"SELECT * FROM {table} ORDER BY id")]
