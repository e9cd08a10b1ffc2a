"""Records into rows: every function works in the caller's transaction and adds only what is not there yet."""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from kernelcast.runtime.bundle.fingerprint import (
    ComputeFingerprint,
    FabricFingerprint,
    SoftwareFingerprint,
    canonical_json,
)
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.operators import OPERATORS
from kernelcast.store.canonical import record_digest
from kernelcast.store.children import ChildRows, KernelRow
from kernelcast.store.records import Sample
from kernelcast.store.runs import Run
from kernelcast.store.steps import MeasuredStep, Prediction, PredictorRecord
from kernelcast.store.traces import IngestedTrace, UnrecognisedKernels

_ADD_SAMPLE = (
    "INSERT INTO sample (id, run_id, operator, direction, dtype, variant, vector, status, reason, time_us,"
    " quiet_us, spread, statistic, repetition_count, flops, moved_bytes, reference_us, measured_at)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
)


def write_operators(connection: sqlite3.Connection) -> None:
    """Bring the operator table up to this kernelcast's; operators of other versions stay."""
    for row in OPERATORS.values():
        connection.execute(
            "INSERT INTO operator (name, paper_name, title, class, collective, directions, features)"
            " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET paper_name = excluded.paper_name,"
            " title = excluded.title, class = excluded.class, collective = excluded.collective,"
            " directions = excluded.directions, features = excluded.features",
            _operator_row(row.name),
        )


def operators_are_current(connection: sqlite3.Connection) -> bool:
    """Whether the operator table already says what this kernelcast would write."""
    rows = connection.execute(
        "SELECT name, paper_name, title, class, collective, directions, features FROM operator"
    )
    stored = {row[0]: tuple(row) for row in rows}
    return all(stored.get(name) == _operator_row(name) for name in OPERATORS)


def _operator_row(name: str) -> tuple[str, ...]:
    row = OPERATORS[name]
    return (
        row.name,
        row.paper_name,
        row.title,
        str(row.operator_class),
        row.collective,
        canonical_json([str(direction) for direction in row.directions]),
        json.dumps(dict(row.features), separators=(",", ":")),  # in the order of the vector, so not sorted
    )


def write_run(
    connection: sqlite3.Connection,
    run: Run,
    compute: ComputeFingerprint,
    fabric: FabricFingerprint | None,
    software: SoftwareFingerprint,
) -> str:
    """Add a run with its fingerprints, source and note; answers its id.

    Raises:
        UsageError: the run's fingerprint ids are not those of the fingerprints.
    """
    _same_id("compute_id", run.compute_id, compute.digest)
    _same_id("software_id", run.software_id, software.digest)
    if run.fabric_id is not None:
        _same_id("fabric_id", run.fabric_id, None if fabric is None else fabric.digest)
    _add_fingerprint(connection, "hardware", compute)
    _add_fingerprint(connection, "software", software)
    if fabric is not None and run.fabric_id is not None:
        _add_fingerprint(connection, "fabric", fabric)
    _add(connection, "source", {"id": run.source.id, **asdict(run.source)})
    run_id = run.id
    _add(
        connection,
        "run",
        {
            "id": run_id,
            "started_at": run.started_at,
            "kernelcast_version": run.kernelcast_version,
            "code_digest": run.code_digest,
            "command": run.command,
            "plan": run.plan,
            "compute_id": run.compute_id,
            "fabric_id": run.fabric_id,
            "software_id": run.software_id,
            "conditions": run.conditions,
            "source_id": run.source.id,
        },
    )
    if run.site or run.note:
        note = {"run_id": run_id, "site": run.site, "note": run.note}
        _add(connection, "run_note", {"id": record_digest("run_note", note), **note})
    return run_id


def _same_id(name: str, found: str, expected: str | None) -> None:
    if found != expected:
        raise UsageError(
            f"run {name}: found {found}, expected {expected}, the digest of the fingerprint given"
        )


def write_samples(connection: sqlite3.Connection, samples: Iterable[Sample]) -> int:
    """Add samples with their flags, repetitions and kernels; answers how many were new."""
    children = ChildRows(connection)
    added = 0
    for sample in samples:
        cursor = connection.execute(_ADD_SAMPLE, _sample_row(sample))
        if cursor.rowcount != 1:
            continue  # this very sample is there already, and with it its repetitions and kernels
        added += 1
        number = cursor.lastrowid or 0
        children.add_flags(number, sample.flags)
        for repetition in sample.repetitions:
            kernels = [KernelRow(k.name, k.start_us, k.duration_us, k.stream) for k in repetition.kernels]
            children.add(number, repetition.index, repetition.time_us, repetition.start_us, kernels)
    children.flush()
    return added


def _sample_row(sample: Sample) -> tuple[Any, ...]:
    return (
        sample.id,
        sample.run_id,
        sample.operator,
        sample.direction.value,
        sample.dtype,
        sample.variant,
        canonical_json(sample.vector),
        sample.status.value,
        sample.reason,
        sample.time_us,
        sample.quiet_us,
        sample.spread,
        sample.statistic,
        sample.repetition_count,
        sample.flops,
        sample.moved_bytes,
        sample.reference_us,
        sample.measured_at,
    )


def write_step(connection: sqlite3.Connection, step: MeasuredStep) -> str:
    """Add a measured training step; answers its id."""
    return _add_record(connection, "step", step, {"model_name": str(step.model.get("name", ""))})


def write_prediction(connection: sqlite3.Connection, prediction: Prediction) -> str:
    """Add what was predicted for a step; answers its id."""
    return _add_record(connection, "prediction", prediction, {})


def write_predictor(connection: sqlite3.Connection, predictor: PredictorRecord) -> str:
    """Add a trained regressor's record; answers its id."""
    return _add_record(connection, "predictor", predictor, {})


def write_trace(
    connection: sqlite3.Connection, trace: IngestedTrace, unrecognised: Iterable[UnrecognisedKernels]
) -> str:
    """Add a trace, whose run is there, and the kernels in it that no sample holds; answers its id."""
    trace_id = _add_record(connection, "trace", trace, {})
    for kernels in unrecognised:
        _add_record(connection, "unrecognised_kernel", kernels, {})
    return trace_id


def _add_record(
    connection: sqlite3.Connection,
    table: str,
    record: IngestedTrace | UnrecognisedKernels | MeasuredStep | Prediction | PredictorRecord,
    derived: Mapping[str, str],
) -> str:
    # The fields of these records are columns of their tables; `derived` are those that only SQL readers need.
    record_id = record.id
    _add(connection, table, {"id": record_id, **derived, **asdict(record)})
    return record_id


def _add_fingerprint(
    connection: sqlite3.Connection,
    table: str,
    fingerprint: ComputeFingerprint | FabricFingerprint | SoftwareFingerprint,
) -> None:
    values = fingerprint.to_dict()
    _add(
        connection,
        table,
        {"id": fingerprint.digest, "description": fingerprint.description, **values, "fingerprint": values},
    )


def _add(connection: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> None:
    # Not INSERT OR IGNORE, which would also swallow rows that break another constraint. Table and column
    # names are this package's own.
    columns, places = ", ".join(row), ", ".join("?" for _ in row)
    connection.execute(
        f"INSERT INTO {table} ({columns}) VALUES ({places}) ON CONFLICT (id) DO NOTHING",
        [_column(value) for value in row.values()],
    )


def _column(value: object) -> object:
    """A field as SQLite stores it: JSON text for lists and mappings, 0 or 1 for booleans."""
    if isinstance(value, Mapping | list | tuple):
        return canonical_json(value)
    return int(value) if isinstance(value, bool) else value
