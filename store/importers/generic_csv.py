"""The generic CSV: a measured operator per row, for sites with scripts of their own (docs/importing.md)."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import OPERATORS, Operator
from kernelcast.store.importers.csv_table import CsvRow, CsvTable, positive
from kernelcast.store.importers.description import Description, read_description
from kernelcast.store.importers.parsed import (
    Parsed,
    checked_direction,
    checked_dtype,
    imported_sample,
)
from kernelcast.store.importers.raw_parameters import RAW_VOCABULARY, SYMBOLS, workload_vector
from kernelcast.store.importers.text_file import Malformed, Skipped, TextFile, read_text_file
from kernelcast.store.records import Sample
from kernelcast.store.runs import MeasuredRun

CSV_FORMAT = "kernelcast.csv/1"
"""The format in the optional first line `# kernelcast.csv/1`."""

_PLAIN = (
    "operator", "role", "direction", "dtype", "time_us", "repetitions_us", "repetitions", "statistic", "variant",
    "measured_at",
)  # fmt: skip
_FEATURES = tuple(dict.fromkeys(name for row in OPERATORS.values() for name in row.features))
_RAW = (*SYMBOLS, RAW_VOCABULARY)
_PAPER_NAMES = {"mp": "tp", "encoders": "layers"}
_KNOWN = frozenset((*_PLAIN, *_FEATURES, *_RAW, *_PAPER_NAMES))
_OWN_PREFIX = "x_"  # columns that are ignored
_MAX_REPETITIONS = 100_000


def read_csv_files(
    paths: Sequence[Path], *, described: Description | None = None, strict: bool = False
) -> Parsed:
    """Read files in the generic format. `NAME.toml` next to `NAME.csv` describes it; `described` takes precedence.

    Raises:
        DataError: a file has another format, or, with `strict`, a line is malformed.
        UsageError: the device, or the fabric of collectives, is unknown.
    """
    parsed = Parsed(strict=strict, files=len(paths))
    for path in paths:
        file = read_text_file(path)
        description = described or Description()
        if (neighbour := path.with_suffix(".toml")).is_file():
            description = description.over(read_description(neighbour))
        for measured in _runs(file, description, parsed):
            parsed.add(measured)
    return parsed.checked(paths)


def _runs(file: TextFile, description: Description, skipped: Skipped) -> Iterator[MeasuredRun]:
    """A run of compute operators and, if the fabric is known, a run of collectives."""
    fabrics = {False: None, True: description.network() if "gpus_per_node" in description.fabric else None}
    runs = {
        is_collective: description.run("import csv", file, fabric)
        for is_collective, fabric in fabrics.items()
        if fabric or not is_collective
    }
    ids = {is_collective: measured.run.id for is_collective, measured in runs.items()}
    samples: dict[bool, list[Sample]] = {False: [], True: []}
    for cells in _rows(file, skipped):
        with skipped.row(file.path, cells.line):
            row = _row(cells)
            is_collective = row.operator.is_collective
            if is_collective not in ids:
                description.network()  # raises: the fabric is unknown
            samples[is_collective].append(_sample(row, ids[is_collective], description))
    for is_collective, measured in runs.items():
        yield replace(measured, samples=samples[is_collective])


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
    """Line number of the header: 1, or 2 after `# kernelcast.csv/…`."""
    marker = re.match(r"#\s*(\S+)", file.text)
    if marker is None:
        return 1
    if marker[1] != CSV_FORMAT:
        raise DataError(f"{file.path}:1: found format {marker[1]!r:.40}, expected {CSV_FORMAT!r}")
    return 2


@dataclass(frozen=True, slots=True)
class _Row:
    """A row with its operator and role; columns have the names of `SYMBOLS`."""

    cells: CsvRow
    operator: Operator
    role: str


def _row(cells: CsvRow) -> _Row:
    name, role = cells.text("operator"), cells.cells.get("role", "")
    if name not in OPERATORS:
        raise Malformed(f"operator {name!r:.60} is unknown; docs/importing.md lists them")
    if role and role not in OPERATORS[name].roles:
        expected = ", ".join(filter(None, OPERATORS[name].roles)) or "none"
        raise Malformed(f"role: found {role!r:.40}, expected of {name}: {expected}")
    named = {_PAPER_NAMES.get(column, column): cell for column, cell in cells.cells.items()}
    return _Row(replace(cells, cells=named), OPERATORS[name], role)


def _sample(row: _Row, run_id: str, description: Description) -> Sample:
    def text(name: str) -> str:
        return row.cells.cells.get(name, description.row_default(name))

    given, repetitions_us = row.cells.cells, _repetitions_us(row.cells.cells.get("repetitions_us", ""))
    return imported_sample(
        row.operator,
        checked_direction(row.operator, given.get("direction", "")),
        checked_dtype(text("dtype")),
        _vector(row),
        run_id=run_id,
        role=row.role,
        time_us=None if repetitions_us else row.cells.positive("time_us"),
        statistic=text("statistic"),
        repetition_count=row.cells.whole("repetitions") if "repetitions" in given else 0,
        repetitions_us=repetitions_us,
        variant=text("variant"),
        measured_at=given.get("measured_at"),
    )


def _vector(row: _Row) -> tuple[int, ...]:
    """The stated features if complete, else the vector of the raw parameters."""
    cells, operator = row.cells, row.operator
    stated = {name: cells.whole(name) for name in operator.features if name in cells.cells}
    if operator.equal_unless_measured and "h_kv" not in cells.cells:
        feature, partner = operator.equal_unless_measured
        if operator.features.keys() - stated.keys() == {feature}:
            stated[feature] = stated[partner]
    if len(stated) == len(operator.features):
        return tuple(stated[name] for name in operator.features)
    given = {name: cells.whole(name) for name in _RAW if name in cells.cells}
    vector = workload_vector(operator, row.role, given)
    for name, value in zip(operator.features, vector, strict=True):
        if stated.get(name, value) != value:
            raise Malformed(f"{name}: found {cells.cells[name]}, but the raw parameters give {value}")
    return vector


def _repetitions_us(text: str) -> tuple[float, ...]:
    parts = text.split(";") if text else []
    if len(parts) > _MAX_REPETITIONS:
        raise Malformed(f"repetitions_us: more than {_MAX_REPETITIONS} times in one row")
    return tuple(positive(part.strip(), "repetitions_us") for part in parts)
