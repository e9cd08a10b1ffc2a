"""Samples back from their rows, and the questions that collection and training ask about them."""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from kernelcast.runtime.bundle.fingerprint import canonical_json, content_digest
from kernelcast.runtime.operators import Direction
from kernelcast.store.canonical import plain_mapping
from kernelcast.store.records import Kernel, Repetition, Sample, Status

PointKey = tuple[str, Direction, str, tuple[int, ...]]
"""Operator, direction, dtype, workload vector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """A sample without its repetitions, with what it was measured on: a row of a training set (µs)."""

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
    # Of what has one time: mean of its repetitions without the lowest and the highest tenth; None where unknown.
    inner_mean_us: float | None = None
    flags: tuple[tuple[str, str], ...] = ()  # what makes it doubtful: flag and detail


_INNER_MEAN = (
    "SELECT avg(time_us) FROM (SELECT time_us, row_number() OVER (ORDER BY time_us) AS place, count(*) OVER () AS count"
    " FROM repetition WHERE sample_number = sample.number) WHERE place > count / 10 AND place <= count - count / 10"
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


def read_sample_rows(connection: sqlite3.Connection, **wanted: Any) -> list[SampleRow]:
    """Samples that match, in the order of their ids."""
    where, parameters = _where(wanted)
    sql = (
        "SELECT sample.id, sample.run_id, sample.operator, sample.direction, sample.dtype, sample.variant,"
        " sample.vector, sample.status, sample.reason, sample.time_us, sample.quiet_us, sample.spread,"
        " sample.repetition_count, sample.flops, sample.moved_bytes, sample.reference_us, sample.measured_at,"
        " run.compute_id, run.fabric_id, run.software_id, run.conditions, source.kind,"
        f" CASE sample.direction WHEN 'once' THEN ({_INNER_MEAN}) END,"
        " (SELECT json_group_array(json_array(flag, detail)) FROM"
        " (SELECT flag, detail FROM sample_flag WHERE sample_number = sample.number ORDER BY flag))"
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
        row["flags"] = tuple((flag, detail) for flag, detail in json.loads(row["flags"]))
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
    """Every sample (of one run) with flags, repetitions and kernels, one at a time, in order of id."""
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
        number = row.pop("number")
        flags = connection.execute(
            "SELECT flag, detail FROM sample_flag WHERE sample_number = ? ORDER BY flag", (number,)
        ).fetchall()
        yield Sample(repetitions=_repetitions(connection, number), flags=tuple(flags), **row)


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
