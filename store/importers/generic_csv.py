"""The generic CSV: one measured operator per row, for sites with their own scripts (docs/importing.md)."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernelcast.runtime.bundle.fingerprint import FabricFingerprint
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import OPERATORS, Operator
from kernelcast.store.importers.csv_table import CsvRow, CsvTable, positive
from kernelcast.store.importers.description import Description, read_description
from kernelcast.store.importers.parsed import (
    Batch,
    Parsed,
    checked_direction,
    checked_dtype,
    imported_sample,
)
from kernelcast.store.importers.raw_parameters import RAW_VOCABULARY, SYMBOLS, workload_vector
from kernelcast.store.importers.text_file import Malformed, Skipped, TextFile, read_text_file
from kernelcast.store.records import Sample
from kernelcast.store.runs import Run

CSV_FORMAT = "kernelcast.csv/1"
"""The optional first line is `# kernelcast.csv/1`; a file without it is read as this version."""

_PLAIN = (
    "operator", "role", "direction", "dtype", "time_us", "repetitions_us", "repetitions", "statistic", "variant",
    "measured_at",
)  # fmt: skip
_FEATURES = tuple(dict.fromkeys(name for row in OPERATORS.values() for name in row.features))
_RAW = (*SYMBOLS, RAW_VOCABULARY)
_PAPER_NAMES = {"mp": "tp", "encoders": "layers"}
_KNOWN = frozenset((*_PLAIN, *_FEATURES, *_RAW, *_PAPER_NAMES))
_OWN_PREFIX = "x_"  # columns for the site's own use
_MAX_REPETITIONS = 100_000


def read_csv_files(
    paths: Sequence[Path], *, described: Description | None = None, strict: bool = False
) -> Parsed:
    """Read files in the generic format; `NAME.toml` next to `NAME.csv` describes it, `described` goes before.

    Raises:
        DataError: a file is not what it claims, or, when `strict`, a line is malformed.
        UsageError: device (or, for collectives, fabric) unknown.
    """
    parsed = Parsed(strict=strict, files=len(paths))
    for path in paths:
        file = read_text_file(path)
        description = described or Description()
        if (neighbour := path.with_suffix(".toml")).is_file():
            description = description.over(read_description(neighbour))
        for batch in _batches(file, description, parsed):
            parsed.add(batch)
    return parsed.checked(paths)


def _batches(file: TextFile, description: Description, skipped: Skipped) -> Iterator[Batch]:
    """Up to two: compute operators, and collectives, whose run has a fabric."""
    compute = description.compute()
    fabric = description.network() if "gpus_per_node" in description.fabric else None
    runs = {False: _run(file, description, None), True: _run(file, description, fabric) if fabric else None}
    ids = {is_collective: run.id for is_collective, run in runs.items() if run is not None}
    samples: dict[bool, list[Sample]] = {False: [], True: []}
    for row in _rows(file, skipped):
        with skipped.row(file.path, row.line):
            measured = _measured(row)
            is_collective = measured.operator.is_collective
            if is_collective not in ids:
                description.network()  # raises: the fabric is unknown
            samples[is_collective].append(_sample(measured, ids[is_collective], description))
    for is_collective, run in runs.items():
        if run is not None:
            yield Batch(
                run=run,
                compute=compute,
                fabric=fabric if is_collective else None,
                software=description.versions(),
                samples=samples[is_collective],
            )


def _run(file: TextFile, description: Description, fabric: FabricFingerprint | None) -> Run:
    return description.run(command="import csv", file_name=file.name, file_digest=file.digest, fabric=fabric)


def _rows(file: TextFile, skipped: Skipped) -> Iterator[CsvRow]:
    table = CsvTable(file, first_line=_header_line(file))
    table.require(("operator",), f"a {CSV_FORMAT} file")
    if not {"time_us", "repetitions_us"} & set(table.columns):
        table.require(("time_us",), f"a {CSV_FORMAT} file")
    for name in table.columns:
        if name not in _KNOWN and not name.startswith(_OWN_PREFIX):
            raise DataError(
                f"{file.path}: column {name!r:.40} is unknown; columns of your own start with {_OWN_PREFIX!r}"
            )
    return table.rows(skipped)


def _header_line(file: TextFile) -> int:
    """Line of the header: the first, or the one after `# kernelcast.csv/…`."""
    marker = re.match(r"#\s*(\S+)", file.text)
    if marker is None:
        return 1
    if marker[1] != CSV_FORMAT:
        raise DataError(f"{file.path}:1: found format {marker[1]!r:.40}, expected {CSV_FORMAT!r}")
    return 2


@dataclass(frozen=True, slots=True)
class _Measured:
    """A row, its columns by present names, with the operator and role that it names."""

    row: CsvRow
    operator: Operator
    role: str


def _measured(row: CsvRow) -> _Measured:
    name = row.text("operator")
    if name not in OPERATORS:
        raise Malformed(f"operator {name!r:.60} is unknown; docs/importing.md lists them")
    role = row.cells.get("role", "")
    if role and role not in OPERATORS[name].roles:
        expected = ", ".join(filter(None, OPERATORS[name].roles)) or "none"
        raise Malformed(f"role: found {role!r:.40}, expected of {name}: {expected}")
    cells = {_PAPER_NAMES.get(column, column): cell for column, cell in row.cells.items()}
    return _Measured(replace(row, cells=cells), OPERATORS[name], role)


def _sample(measured: _Measured, run_id: str, description: Description) -> Sample:
    row, cells = measured.row, measured.row.cells
    repetitions_us = _repetitions_us(cells.get("repetitions_us", ""))
    return imported_sample(
        measured.operator,
        checked_direction(measured.operator, cells.get("direction", "")),
        checked_dtype(cells.get("dtype", description.row_default("dtype"))),
        _vector(measured),
        run_id=run_id,
        role=measured.role,
        time_us=None if repetitions_us else row.positive("time_us"),
        statistic=cells.get("statistic", description.row_default("statistic")),
        repetition_count=row.whole("repetitions") if "repetitions" in cells else 0,
        repetitions_us=repetitions_us,
        variant=cells.get("variant", description.row_default("variant")),
        measured_at=cells.get("measured_at"),
    )


def _vector(measured: _Measured) -> tuple[int, ...]:
    """The features where all of them are there, else what follows from the raw parameters."""
    row, operator = measured.row, measured.operator
    stated = {name: row.whole(name) for name in operator.features if name in row.cells}
    if operator.equal_unless_measured and "h_kv" not in row.cells:
        feature, partner = operator.equal_unless_measured
        if operator.features.keys() - stated.keys() == {feature}:
            stated[feature] = stated[partner]
    if len(stated) == len(operator.features):
        return tuple(stated[name] for name in operator.features)
    given = {name: row.whole(name) for name in _RAW if name in row.cells}
    vector = workload_vector(operator, measured.role, given)
    for name, value in zip(operator.features, vector, strict=True):
        if stated.get(name, value) != value:
            raise Malformed(f"{name}: found {row.cells[name]}, but the raw parameters give {value}")
    return vector


def _repetitions_us(text: str) -> tuple[float, ...]:
    parts = text.split(";") if text else []
    if len(parts) > _MAX_REPETITIONS:
        raise Malformed(f"repetitions_us: more than {_MAX_REPETITIONS} times in one row")
    return tuple(positive(part.strip(), "repetitions_us") for part in parts)
