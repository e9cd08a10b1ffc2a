"""`Database`: one kernelcast database, opened, written and read."""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import sqlite_utils

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.errors import DataError
from kernelcast.store import read, write
from kernelcast.store.canonical import Record
from kernelcast.store.connection import connect, snapshot, transaction
from kernelcast.store.database_file import check_file, check_size, create_file
from kernelcast.store.records import Sample, Status
from kernelcast.store.rows import FINGERPRINTS, content_tables_digest, record_of, row_counts, rows
from kernelcast.store.runs import MeasuredRun, Run, Source
from kernelcast.store.sample_rows import stored_samples
from kernelcast.store.sqlite_errors import reading, reported
from kernelcast.store.timelines import write_timeline

R = TypeVar("R", bound=Record)

_RUNS = (
    "SELECT run.*, coalesce(run_note.site, '') AS site, coalesce(run_note.note, '') AS note FROM run"
    " LEFT JOIN run_note ON run_note.id = (SELECT min(id) FROM run_note WHERE run_note.run_id = run.id)"
    " ORDER BY run.id"
)
_FINGERPRINTS = (
    "SELECT {table}.id, description, fingerprint, count(sample.number) AS samples FROM {table}"
    " LEFT JOIN run ON run.{key} = {table}.id LEFT JOIN sample ON sample.run_id = run.id"
    " GROUP BY {table}.id ORDER BY samples DESC, {table}.id"
)


class Database:
    """A benchmark database. Use `Database.open(...)` in a `with` statement.

    Every writing method is one transaction, and several processes may write at the same time. Rows are only added;
    adding an existing row changes nothing. An object belongs to one thread.

    Every method raises DataError when the file is damaged, locked for too long or read-only, or when the disk is full.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        create: bool = False,
        read_only: bool = False,
        max_size_bytes: int | None = None,
    ) -> Self:
        """Open a database, with `create` a new one if the file is missing. Older versions are migrated.

        Raises:
            DataError: the file is missing, cannot be opened, is not a kernelcast database, has a newer version (and
                stays unchanged), an older version with `read_only`, foreign tables, views or triggers, or is larger
                than `max_size_bytes`.
        """
        path = Path(path)
        if create and not read_only and not path.exists():
            create_file(path)
        check_file(path)
        if max_size_bytes is not None:
            check_size(path, max_size_bytes)
        with reported(path):
            return cls(path, connect(path, read_only=read_only))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with reported(self.path):
            self._connection.close()

    @property
    def connection(self) -> sqlite3.Connection:
        """The open connection (autocommit), for SQL that has no method here."""
        return self._connection

    def query(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[dict[str, Any]]:
        """Rows of a statement, as dictionaries column → value; DataError where it is wrong or no query."""
        # Installed plugins of sqlite-utils must not run here.
        database = sqlite_utils.Database(self._connection, recursive_triggers=False, execute_plugins=False)
        with reported(self.path):
            try:
                given = dict(parameters) if isinstance(parameters, Mapping) else list(parameters)
                return list(database.query(sql, given))
            except ValueError as error:
                raise DataError(f"{self.path}: {error}") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with reported(self.path), transaction(self._connection):
            yield self._connection

    # Writing

    def add_run(
        self,
        run: Run,
        compute: ComputeFingerprint,
        fabric: FabricFingerprint | None,
        software: SoftwareFingerprint,
    ) -> str:
        """Add a run with its fingerprints and source; returns its id.

        The fabric of a run without `fabric_id` is not stored. UsageError where an id is not its fingerprint's digest.
        """
        with self._transaction() as connection:
            return write.write_run(connection, run, compute, fabric, software)

    def add_fabric(self, fabric: FabricFingerprint) -> bool:
        """Add a fabric without a run, such as a described fabric; returns whether it was new."""
        with self._transaction() as connection:
            known = connection.execute("SELECT 1 FROM fabric WHERE id = ?", (fabric.digest,)).fetchone()
            write.write_fingerprint(connection, "fabric", fabric)
            return known is None

    def add_samples(self, samples: Iterable[Sample]) -> int:
        """Add samples with their flags, repetitions and kernels; returns how many were new.

        Other writers wait while `samples` is iterated: pass finished measurements. DataError where a sample's run or
        operator is not in the database; none of the samples is stored.
        """
        with self._transaction() as connection:
            return sum(is_new for _, is_new in write.write_samples(connection, samples))

    def add(self, record: Record) -> str:
        """Add a record, such as a measured step of a stored run or a prediction for it; returns its id."""
        with self._transaction() as connection:
            return write.write_record(connection, record)

    def add_all(self, records: Iterable[Record]) -> int:
        """Add records; returns how many rows were new."""
        with self._transaction() as connection:
            before = connection.total_changes
            for record in records:
                write.write_record(connection, record)
            return connection.total_changes - before

    def add_runs(self, runs: Iterable[MeasuredRun]) -> int:
        """Add runs with everything that they measured; returns how many samples were new."""
        added = 0
        with self._transaction() as connection:
            for measured in runs:
                write.write_run(
                    connection, measured.run, measured.compute, measured.fabric, measured.software
                )
                for trace, unrecognised in measured.traces:
                    for record in (trace, *unrecognised):
                        write.write_record(connection, record)
                written = write.write_samples(connection, measured.samples)
                for timeline in measured.timelines:
                    samples = write.write_samples(connection, timeline.samples)
                    write_timeline(connection, timeline, [sample_id for sample_id, _ in samples])
                    written += samples
                added += sum(is_new for _, is_new in written)
            write.write_peaks(connection)
        return added

    # Reading

    def measured_points(
        self, compute_id: str, software_id: str, **wanted: Unpack[read.PointFilter]
    ) -> set[read.PointKey]:
        """Points (operator, direction, dtype, vector) that need not be measured again on this hardware.

        A point counts when it has a time or the device does not support it; failed measurements are repeated.
        """
        with reading(self.path):
            return read.read_measured_points(
                self._connection, compute_id=compute_id, software_id=software_id, **wanted
            )

    def read_samples(self, **wanted: Unpack[read.SampleFilter]) -> list[read.SampleRow]:
        """Samples that match every filter, without repetitions, in order of id; `status` defaults to OK."""
        with reading(self.path):
            return read.read_sample_rows(self._connection, {"status": Status.OK, **wanted})

    def samples_in_full(self) -> Iterator[Sample]:
        """Every sample with repetitions and kernels, one at a time, in order of id."""
        with reading(self.path):
            yield from (stored.sample() for stored in stored_samples(self._connection, order="id"))

    def content_digest(self) -> str:
        """Digest of all measurements; databases with equal content have equal digests."""
        with reading(self.path), snapshot(self._connection):
            return content_tables_digest(self._connection)

    def row_counts(self) -> dict[str, int]:
        """Rows per table of content, and of flags, repetitions, kernels, and steps and events of timelines."""
        with reading(self.path), snapshot(self._connection):
            return row_counts(self._connection)

    def run_list(self) -> list[Run]:
        """Every run, in the order of their ids, with the first of its notes (merging can bring several)."""
        with reading(self.path):
            sources = {source.id: source for source in self.records(Source)}
            runs = []
            for row in rows(self._connection, _RUNS):
                row |= {"conditions": json.loads(row["conditions"]), "source": sources[row["source_id"]]}
                runs.append(Run(**{field.name: row[field.name] for field in fields(Run)}))
            return runs

    def hardware_list(self) -> list[read.HardwareRow]:
        """Every device in the database, most samples first."""
        return self._fingerprints("hardware")

    def fabric_list(self) -> list[read.FabricRow]:
        """Every fabric in the database, most samples first."""
        return self._fingerprints("fabric")

    def software_list(self) -> list[read.SoftwareRow]:
        """Every set of software versions in the database, most samples first."""
        return self._fingerprints("software")

    def records(self, kind: type[R]) -> list[R]:
        """Every record of a kind (`MeasuredStep`, `Prediction`, `IngestedTrace` …), in the order of their ids."""
        with reading(self.path):
            found = rows(self._connection, f"SELECT * FROM {kind.table} ORDER BY id")
            return [record_of(kind.table, row) for row in found]

    def _fingerprints(self, table: str) -> list[read.FingerprintRow[Any]]:
        with reading(self.path):
            return [
                read.FingerprintRow(
                    id=row_id,
                    description=description,
                    fingerprint=FINGERPRINTS[table].from_dict(json.loads(fingerprint)),
                    sample_count=count,
                )
                for row_id, description, fingerprint, count in self._connection.execute(
                    _FINGERPRINTS.format(
                        table=table, key="compute_id" if table == "hardware" else f"{table}_id"
                    )
                )
            ]
