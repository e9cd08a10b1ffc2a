"""Ids computed again from stored rows: a row whose content does not give its id is damaged or forged."""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from kernelcast.runtime.bundle.fingerprint import (
    ComputeFingerprint,
    FabricFingerprint,
    SoftwareFingerprint,
    canonical_json,
)
from kernelcast.runtime.errors import KernelcastError
from kernelcast.store.canonical import record_digest, utc_moment
from kernelcast.store.children import KernelRow
from kernelcast.store.records import SAMPLE_MEANING, Sample
from kernelcast.store.runs import Source
from kernelcast.store.steps import MeasuredStep, Prediction, PredictorRecord
from kernelcast.store.traces import IngestedTrace, UnrecognisedKernels

_FINGERPRINTS: Mapping[str, type[ComputeFingerprint | FabricFingerprint | SoftwareFingerprint]] = {
    "hardware": ComputeFingerprint,
    "fabric": FabricFingerprint,
    "software": SoftwareFingerprint,
}
_RECORDS = {
    "source": Source,
    "trace": IngestedTrace,
    "unrecognised_kernel": UnrecognisedKernels,
    "step": MeasuredStep,
    "prediction": Prediction,
    "predictor": PredictorRecord,
}
_NOTE = ("run_id", "site", "note")
_RUN = (
    "started_at", "kernelcast_version", "code_digest", "command", "plan", "compute_id", "fabric_id", "software_id",
    "conditions", "source_id",
)  # fmt: skip
_MAPPINGS = {"conditions", "model", "options", "components_s", "hyperparameters"}

FINGERPRINT_TABLES = tuple(_FINGERPRINTS)


def row_problem(table: str, row: Mapping[str, Any]) -> str | None:
    """What is wrong with a row of a content table (samples: see `sample_problem`), or None.

    A row is sound when the record that it stands for can be made, and has its id: such a row can be read later.
    """
    try:
        found = _fingerprint_id(table, row) if table in _FINGERPRINTS else _record_id(table, row)
    except (KernelcastError, ValueError, TypeError, AttributeError) as error:
        return str(error)
    return _id_problem(row["id"], found)


def _fingerprint_id(table: str, row: Mapping[str, Any]) -> str:
    said = _parsed("fingerprint", row["fingerprint"])
    for name, value in said.items():
        expected = canonical_json(value) if isinstance(value, list) else value
        if row.get(name) != expected:  # True == 1, as SQLite stores it
            raise ValueError(f"{name} is {row.get(name)!r}, its fingerprint says {expected!r}")
    digest: str = _FINGERPRINTS[table].from_dict(said).digest
    return digest


def _record_id(table: str, row: Mapping[str, Any]) -> str:
    values = {name: _parsed(name, value) if name in _MAPPINGS else value for name, value in row.items()}
    for name in _MAPPINGS & values.keys():
        if not isinstance(values[name], dict):
            raise ValueError(f"{name} is no JSON object")
    if table == "run_note":
        return record_digest(table, {name: values[name] for name in _NOTE})
    if table == "run":
        started_at = values["started_at"]
        if started_at is not None and utc_moment(started_at, "started_at") != started_at:
            raise ValueError(f"started_at is {started_at!r}, not in the stored form")
        return record_digest(table, {name: values[name] for name in _RUN})
    if table == "step":
        values["recomputation"] = bool(values["recomputation"])
        values["repetitions_s"] = tuple(_parsed("repetitions_s", values["repetitions_s"]))
        if values["model_name"] != str(values["model"].get("name", "")):
            raise ValueError(f"model_name is {values['model_name']!r}, its model says otherwise")
    if table == "trace":
        values["process_groups"] = tuple(_parsed("process_groups", values["process_groups"]))
    record = _RECORDS[table]
    return str(record(**{field.name: values[field.name] for field in fields(record)}).id)


def _parsed(name: str, text: str) -> Any:
    value = json.loads(text)
    if canonical_json(value) != text:
        raise ValueError(f"{name} is not in the canonical form (sorted keys, no spaces)")
    return value


def _id_problem(stored: str, found: str) -> str | None:
    return None if stored == found else f"content does not match its id, it gives {found}"


@dataclass(frozen=True, slots=True)
class StoredRepetition:
    """A repetition as its rows say. Times in µs."""

    index: int
    time_us: float
    start_us: float
    kernels: list[KernelRow]


@dataclass(frozen=True, slots=True)
class StoredSample:
    """A sample as its rows say: `columns` without id and number."""

    id: str
    columns: dict[str, Any]
    repetitions: list[StoredRepetition]
    flags: list[tuple[str, str]]  # flag and detail, in order of flag
    gap: bool  # whether the sequence of its kernels has one


def stored_samples(
    connection: sqlite3.Connection, where: str = "1", parameters: Sequence[Any] = ()
) -> Iterator[StoredSample]:
    """Samples with flags, repetitions and kernels, one at a time; `where` is SQL of this package about `sample`.

    Memory does not grow with the database: it holds one sample, and the names of kernels.
    """
    cursor = connection.execute(f"SELECT * FROM sample WHERE {where} ORDER BY number", parameters)
    names = [column[0] for column in cursor.description]
    for values in cursor:
        columns = dict(zip(names, values, strict=True))
        number, sample_id = columns.pop("number"), columns.pop("id")
        repetitions = {
            index: StoredRepetition(index, time_us, start_us, [])
            for index, time_us, start_us in connection.execute(
                "SELECT repetition_index, time_us, start_us FROM repetition WHERE sample_number = ?"
                " ORDER BY repetition_index",
                (number,),
            )
        }
        gap = False
        for index, sequence, *kernel in connection.execute(
            "SELECT repetition_index, sequence, name, start_us, duration_us, stream FROM kernel"
            " JOIN kernel_name ON kernel_name.number = kernel.name_number"
            " WHERE sample_number = ? ORDER BY repetition_index, sequence",
            (number,),
        ):
            repetition = repetitions.get(index)
            if repetition is None or sequence != len(repetition.kernels):
                gap = True
            else:
                repetition.kernels.append(KernelRow._make(kernel))
        flags = connection.execute(
            "SELECT flag, detail FROM sample_flag WHERE sample_number = ? ORDER BY flag", (number,)
        ).fetchall()
        yield StoredSample(sample_id, columns, list(repetitions.values()), flags, gap)


def sample_problem(sample: StoredSample) -> str | None:
    """What is wrong with a sample, its flags, its repetitions or its kernels, or None."""
    if sample.gap:
        return "its kernels are not numbered without gaps"
    try:
        values = {name: sample.columns[name] for name in SAMPLE_MEANING}
        values["vector"] = _parsed("vector", sample.columns["vector"])
        made = Sample(
            **values, flags=tuple(sample.flags)
        )  # whatever a sample must be, apart from its repetitions
        if list(made.flags) != sample.flags:
            return "its flags are not in the stored form"
        values["flags"] = [list(flag) for flag in sample.flags]
        values["repetitions"] = [[r.index, r.time_us, r.start_us, r.kernels] for r in sample.repetitions]
        found = record_digest("sample", values)
    except (KernelcastError, ValueError, TypeError) as error:
        return str(error)
    return _id_problem(sample.id, found)
