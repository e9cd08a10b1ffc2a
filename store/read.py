"""Rows of samples and fingerprints, and the filters that select them."""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, TypedDict, TypeVar

from kernelcast.runtime.bundle.fingerprint import (
    ComputeFingerprint,
    FabricFingerprint,
    SoftwareFingerprint,
    canonical_json,
    content_digest,
)
from kernelcast.runtime.hardware.devices import Load
from kernelcast.runtime.operators import Direction
from kernelcast.store.canonical import plain_mapping
from kernelcast.store.records import SampleFields, Status
from kernelcast.store.rows import rows

PointKey = tuple[str, Direction, str, tuple[int, ...]]
"""Operator, direction, dtype, workload vector."""


class PointFilter(TypedDict, total=False):
    """Filters on measured points; all must match, None matches any. A `load` that is not stated counts as a burst."""

    load: Load | None
    dtype: str | None
    variant: str | None
    fabric_id: str | None
    conditions: Mapping[str, Any] | None


class SampleFilter(PointFilter, total=False):
    """Filters on samples, which all have to match; None matches anything."""

    run_id: str | None
    operator: str | None
    role: str | None
    direction: Direction | None
    status: Status | None
    compute_id: str | None
    software_id: str | None


_OF_RUN = ("compute_id", "software_id", "fabric_id", "conditions")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow(SampleFields):
    """A sample without repetitions, with the hardware, fabric and software that measured it; times in µs."""

    sample_id: str
    compute_id: str
    fabric_id: str | None
    software_id: str
    conditions: Mapping[str, Any]
    source_kind: str
    # Of direction `once`: mean of the repetitions without the lowest and the highest tenth; None if unknown.
    inner_mean_us: float | None = None
    origin: str = ""  # id of the merge that brought it, the first of several; empty for the database's own


_SAMPLE_ROW = (
    "SELECT sample.id AS sample_id, sample.*, run.compute_id, run.fabric_id, run.software_id, run.conditions,"
    " source.kind AS source_kind, coalesce((SELECT merge.id FROM merged_row JOIN merge ON number = merge_number"
    " WHERE table_name = 'sample' AND row_id = sample.id ORDER BY number LIMIT 1), '') AS origin,"
    " CASE sample.direction WHEN 'once' THEN ("
    "SELECT avg(time_us) FROM (SELECT time_us, row_number() OVER (ORDER BY time_us) AS place, count(*) OVER () AS count"
    " FROM repetition WHERE sample_number = sample.number) WHERE place > count / 10 AND place <= count - count / 10"
    ") END AS inner_mean_us,"
    " (SELECT json_group_array(json_array(flag, detail)) FROM"
    " (SELECT flag, detail FROM sample_flag WHERE sample_number = sample.number ORDER BY flag)) AS flags"
    " FROM sample JOIN run ON run.id = sample.run_id JOIN source ON source.id = run.source_id"
    " WHERE {where} ORDER BY sample.id"
)


def read_measured_points(connection: sqlite3.Connection, **wanted: Any) -> set[PointKey]:
    """Points that need not be measured again: they have a time, or the device does not support them."""
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
    """SQL for the filters that are not None, and its parameters."""
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
    """Digest of a training set; the order of the samples does not matter."""
    return content_digest(sorted({row.sample_id for row in samples}))


F = TypeVar("F", ComputeFingerprint, FabricFingerprint, SoftwareFingerprint)


@dataclass(frozen=True, slots=True, kw_only=True)
class FingerprintRow(Generic[F]):
    """A device, fabric or set of software versions in a database, with its number of samples."""

    id: str
    description: str
    fingerprint: F
    sample_count: int


HardwareRow = FingerprintRow[ComputeFingerprint]
FabricRow = FingerprintRow[FabricFingerprint]
SoftwareRow = FingerprintRow[SoftwareFingerprint]
