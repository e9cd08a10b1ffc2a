"""Writing records as rows, in the caller's transaction; rows that exist are left unchanged."""

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import fields

from kernelcast.runtime.bundle.fingerprint import (
    ComputeFingerprint,
    FabricFingerprint,
    SoftwareFingerprint,
    canonical_json,
)
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.devices import device_named
from kernelcast.runtime.operators import OPERATORS, Operator
from kernelcast.store.canonical import Record, record_digest
from kernelcast.store.records import Sample
from kernelcast.store.rows import Row, insert, rows
from kernelcast.store.runs import Run
from kernelcast.store.sample_rows import SampleRows, SampleWriter
from kernelcast.store.steps import MeasuredStep


def write_operators(connection: sqlite3.Connection) -> None:
    """Update the table `operator` to this kernelcast's operators; operators of other versions stay."""
    for row in map(_operator_row, OPERATORS.values()):
        if insert(connection, "operator", row, key="name") is None:
            changes = ", ".join(f"{column} = :{column}" for column in row)
            connection.execute(f"UPDATE operator SET {changes} WHERE name = :name", row)


def operators_are_current(connection: sqlite3.Connection) -> bool:
    """Whether the table `operator` has what this kernelcast would write."""
    stored = {row["name"]: row for row in rows(connection, "SELECT * FROM operator")}
    return all(stored.get(name) == _operator_row(row) for name, row in OPERATORS.items())


def different_features(connection: sqlite3.Connection) -> list[tuple[str, str, str]]:
    """Operators whose features differ from this kernelcast's: name, stored features, expected features."""
    ours = {name: _operator_row(row)["features"] for name, row in OPERATORS.items()}
    stored = connection.execute("SELECT name, features FROM operator ORDER BY name").fetchall()
    return [(name, found, ours[name]) for name, found in stored if name in ours and found != ours[name]]


def _operator_row(row: Operator) -> Row:
    return {
        "name": row.name,
        "title": row.title,
        "class": str(row.operator_class),
        "directions": canonical_json(list(row.costs)),
        # In the order of the vector: not sorted.
        "features": json.dumps(dict(row.features), separators=(",", ":")),
        "roles": json.dumps(
            {role.name: role.paper_name for role in row.roles.values()}, separators=(",", ":")
        ),
    }


def write_peaks(connection: sqlite3.Connection) -> None:
    """Update the published peaks of the database's hardware to this kernelcast's table of devices."""
    if peaks_are_current(connection):
        return
    connection.executemany(
        "INSERT INTO device_peak VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET flops_per_s = excluded.flops_per_s,"
        " memory_bytes_per_s = excluded.memory_bytes_per_s, source = excluded.source",
        _published_peaks(connection),
    )


def peaks_are_current(connection: sqlite3.Connection) -> bool:
    """Whether the table `device_peak` has what this kernelcast would write."""
    return _published_peaks(connection) <= set(connection.execute("SELECT * FROM device_peak"))


def _published_peaks(connection: sqlite3.Connection) -> set[tuple[str, str, float, float, str]]:
    found = set()
    for (name,) in connection.execute("SELECT DISTINCT device_name FROM hardware WHERE kind <> 'cpu'"):
        if (device := device_named(name)) is not None:
            for dtype, rate in device.flops_per_s.items():
                found.add((name, dtype, float(rate), float(device.memory_bytes_per_s), device.source))
    return found


def write_run(
    connection: sqlite3.Connection,
    run: Run,
    compute: ComputeFingerprint,
    fabric: FabricFingerprint | None,
    software: SoftwareFingerprint,
) -> str:
    """Add a run with its fingerprints, source and note; returns its id. Errors as `Database.add_run`."""
    for table, column, found, fingerprint in (
        ("hardware", "compute_id", run.compute_id, compute),
        ("software", "software_id", run.software_id, software),
        ("fabric", "fabric_id", run.fabric_id, fabric),
    ):
        if found is None:
            continue
        if fingerprint is None or found != fingerprint.digest:
            expected = None if fingerprint is None else fingerprint.digest
            raise UsageError(
                f"run {column}: found {found}, expected {expected}, the digest of the fingerprint given"
            )
        write_fingerprint(connection, table, fingerprint)
    write_record(connection, run.source)
    run_id = run.id
    insert(connection, "run", {"id": run_id, **run.columns})
    if run.site or run.note:
        note = {"run_id": run_id, "site": run.site, "note": run.note}
        insert(connection, "run_note", {"id": record_digest("run_note", note), **note})
    return run_id


def write_fingerprint(
    connection: sqlite3.Connection,
    table: str,
    fingerprint: ComputeFingerprint | FabricFingerprint | SoftwareFingerprint,
) -> None:
    """Add a fingerprint to `hardware`, `fabric` or `software`."""
    values = fingerprint.to_dict()
    described = {"id": fingerprint.digest, "description": fingerprint.description, **values}
    insert(connection, table, {**described, "fingerprint": values})


def write_samples(connection: sqlite3.Connection, samples: Iterable[Sample]) -> list[tuple[str, bool]]:
    """Add samples with their flags, repetitions and kernels; returns each one's id, and whether it was new."""
    writer = SampleWriter(connection)
    added = [(found.id, writer.add(found)) for found in map(SampleRows.of, samples)]
    writer.flush()
    return added


def write_record(connection: sqlite3.Connection, record: Record) -> str:
    """Add a record to a table of `RECORDS`; the rows that it refers to exist. Returns its id."""
    record_id = record.id
    row = {"id": record_id, **{field.name: getattr(record, field.name) for field in fields(record)}}  # type: ignore[arg-type]
    if isinstance(record, MeasuredStep):
        row["model_name"] = str(record.model.get("name", ""))  # for readers of SQL
    insert(connection, record.table, row)
    return record_id
