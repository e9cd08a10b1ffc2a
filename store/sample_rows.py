"""Samples as rows of five tables: writing in batches, reading one at a time, verifying against their ids."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kernelcast.runtime.bundle.fingerprint import canonical_json
from kernelcast.store.canonical import future_problem
from kernelcast.store.records import Kernel, Repetition, Sample, repetition_rows, sample_digest
from kernelcast.store.rows import Numbers, Row, id_problem, insert, json_value, rows
from kernelcast.store.sqlite_errors import NO_RECORD

_ROWS_AT_ONCE = 50_000


@dataclass(frozen=True, slots=True)
class RepetitionRow:
    """A repetition as it is stored; a kernel's position in the list is the column `sequence`. Times in µs."""

    index: int
    time_us: float
    start_us: float
    kernels: Sequence[Kernel]


@dataclass(frozen=True, slots=True)
class SampleRows:
    """A sample as it is stored: `columns` without id and number."""

    id: str
    columns: Row
    repetitions: Sequence[RepetitionRow | Repetition]
    flags: list[tuple[str, str]]  # flag and detail, in order of flag
    gap: bool = False  # whether a kernel is missing in the sequence

    @classmethod
    def of(cls, sample: Sample) -> "SampleRows":
        columns = {**sample.columns, "vector": canonical_json(sample.vector)}
        return cls(sample.id, columns, sample.repetitions, list(sample.flags))

    def sample(self) -> Sample:
        """The sample of these rows, or one of `NO_RECORD`."""
        repetitions = tuple(
            Repetition(index=r.index, time_us=r.time_us, start_us=r.start_us, kernels=tuple(r.kernels))
            for r in self.repetitions
        )
        columns = {**self.columns, "vector": tuple(json.loads(self.columns["vector"]))}
        return Sample(**columns, repetitions=repetitions, flags=tuple(self.flags))


def stored_samples(
    connection: sqlite3.Connection, where: str = "1", parameters: Sequence[Any] = (), *, order: str = "number"
) -> Iterator[SampleRows]:
    """Samples with flags, repetitions and kernels; `where` is trusted SQL about `sample`. One is held at a time."""
    for columns in rows(connection, f"SELECT * FROM sample WHERE {where} ORDER BY {order}", parameters):
        number, sample_id = columns.pop("number"), columns.pop("id")
        timed = connection.execute(
            "SELECT repetition_index, time_us, start_us FROM repetition WHERE sample_number = ?"
            " ORDER BY repetition_index",
            (number,),
        ).fetchall()
        kernels: dict[int, list[Kernel]] = {index: [] for index, *_ in timed}
        gap = False
        for index, sequence, *kernel in connection.execute(
            "SELECT repetition_index, sequence, name, start_us, duration_us, stream FROM kernel"
            " JOIN kernel_name ON kernel_name.number = kernel.name_number"
            " WHERE sample_number = ? ORDER BY repetition_index, sequence",
            (number,),
        ):
            if index not in kernels or sequence != len(kernels[index]):
                gap = True
            else:
                kernels[index].append(Kernel._make(kernel))
        flags = connection.execute(
            "SELECT flag, detail FROM sample_flag WHERE sample_number = ? ORDER BY flag", (number,)
        ).fetchall()
        repetitions = [RepetitionRow(index, time, start, kernels[index]) for index, time, start in timed]
        yield SampleRows(sample_id, columns, repetitions, flags, gap)


def sample_problem(sample: SampleRows) -> str | None:
    """The problem of a sample, its flags, repetitions or kernels, or None."""
    if sample.gap:
        return "its kernels are not numbered without gaps"
    try:
        columns = {**sample.columns, "vector": json_value("vector", sample.columns["vector"])}
        # A Sample without repetitions checks the columns; making all kernels would be slow.
        if list(Sample(**columns, flags=tuple(sample.flags)).flags) != sample.flags:
            return "its flags are not in the stored form"
        found = sample_digest(columns, sample.repetitions, sample.flags)
        return id_problem(sample.id, found) or future_problem(columns)
    except NO_RECORD as error:
        return str(error) or type(error).__name__


class SampleWriter:
    """Adds samples in the caller's transaction, with repetitions and kernels in large batches; call `flush` last."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._names, self._numbers = Numbers(connection, "kernel_name", "name"), dict[str, int | None]()
        self._repetitions: list[tuple[Any, ...]] = []
        self._kernels: list[tuple[Any, ...]] = []
        self._flags: list[tuple[Any, ...]] = []

    def add(self, sample: SampleRows) -> bool:
        """Add a sample with its repetitions and kernels; returns False if its id exists."""
        number = insert(self._connection, "sample", {"id": sample.id, **sample.columns})
        if number is None:
            return False
        self._flags.extend((number, flag, detail) for flag, detail in sample.flags)
        numbers, add_kernel = self._numbers, self._kernels.append
        for index, time_us, from_us, kernels in repetition_rows(sample.repetitions):
            self._repetitions.append((number, index, time_us, from_us))
            for sequence, (name, start_us, duration_us, stream) in enumerate(kernels):
                if name not in numbers:
                    numbers[name] = self._names.find(name, {"name": name})
                add_kernel((number, index, sequence, numbers[name], start_us, duration_us, stream))
        if len(self._kernels) + len(self._repetitions) + len(self._flags) >= _ROWS_AT_ONCE:
            self.flush()
        return True

    def flush(self) -> None:
        for table, waiting in (
            ("sample_flag (sample_number, flag, detail)", self._flags),
            ("repetition (sample_number, repetition_index, time_us, start_us)", self._repetitions),
            (
                "kernel (sample_number, repetition_index, sequence, name_number, start_us, duration_us, stream)",
                self._kernels,
            ),
        ):
            places = ", ".join("?" for _ in table.split(","))
            self._connection.executemany(f"INSERT INTO {table} VALUES ({places})", waiting)
            waiting.clear()
