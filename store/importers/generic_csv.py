"""The generic CSV: one measured operator per row, for sites with their own scripts (docs/importing.md)."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernelcast.runtime.bundle.fingerprint import FabricFingerprint
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.operators import OPERATORS, Operator, OperatorClass
from kernelcast.runtime.operators import operator as operator_called
from kernelcast.store.importers.csv_table import CsvRow, CsvTable, positive
from kernelcast.store.importers.description import Description, read_description
from kernelcast.store.importers.imported_sample import checked_direction, checked_dtype, imported_sample
from kernelcast.store.importers.parsed import Batch, Parsed
from kernelcast.store.importers.problems import Malformed, Problems
from kernelcast.store.importers.raw_parameters import RAW_VOCABULARY, SYMBOLS, workload_vector
from kernelcast.store.importers.text_file import TextFile, read_text_file
from kernelcast.store.records import Sample
from kernelcast.store.runs import Run

CSV_FORMAT = "kernelcast.csv/1"
"""What the optional first line `# kernelcast.csv/1` says; a file without it is read as this version."""

_PLAIN = (
    "operator", "direction", "dtype", "time_us", "repetitions_us", "repetitions", "statistic", "variant",
    "measured_at",
)  # fmt: skip
_FEATURES = tuple(dict.fromkeys(name for row in OPERATORS.values() for name in row.features))
_RAW = (*SYMBOLS, RAW_VOCABULARY)
_KNOWN = frozenset((*_PLAIN, *_FEATURES, *_RAW))
_OWN_PREFIX = "x_"  # columns for the site's own use
_MAX_REPETITIONS = 100_000


def read_csv_files(
    paths: Sequence[Path], *, described: Description | None = None, strict: bool = False
) -> Parsed:
    """Read files in the generic format; `NAME.toml` beside `NAME.csv` describes it, `described` goes before.

    Raises:
        DataError: a file is not what it claims, or, when `strict`, a line is malformed.
        UsageError: nobody says which device (or, for collectives, which fabric) was measured.
    """
    problems = Problems(strict=strict)
    parsed = Parsed(files=len(paths))
    for path in paths:
        file = read_text_file(path)
        description = described or Description()
        if (beside := path.with_suffix(".toml")).is_file():
            description = description.over(read_description(beside))
        for batch in _batches(file, description, problems):
            parsed.add(batch)
    parsed.problems = problems.found
    parsed.check_something(", ".join(map(str, paths)))
    return parsed


def _batches(file: TextFile, description: Description, problems: Problems) -> Iterator[Batch]:
    """Up to two: compute operators, and collectives, whose run has a fabric."""
    compute = description.compute()
    fabric = description.network() if "gpus_per_node" in description.fabric else None
    runs = {False: _run(file, description, None), True: _run(file, description, fabric) if fabric else None}
    samples: dict[bool, list[Sample]] = {False: [], True: []}
    for row in _rows(file, problems):
        try:
            operator = _operator(row)
            is_collective = operator.operator_class is OperatorClass.COMMUNICATION
            run = runs[is_collective]
            if run is None:
                description.network()  # raises: nobody says what connects the devices
                continue
            samples[is_collective].append(_sample(row, operator, run.id, description))
        except Malformed as error:
            problems.add(file.path, row.line, error)
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


def _rows(file: TextFile, problems: Problems) -> Iterator[CsvRow]:
    table = CsvTable(file, first_line=_header_line(file))
    table.require(("operator",), f"a {CSV_FORMAT} file")
    if not {"time_us", "repetitions_us"} & set(table.columns):
        table.require(("time_us",), f"a {CSV_FORMAT} file")
    for name in table.columns:
        if name not in _KNOWN and not name.startswith(_OWN_PREFIX):
            raise DataError(
                f"{file.path}: column {name!r:.40} is unknown; columns of your own start with {_OWN_PREFIX!r}"
            )
    return table.rows(problems)


def _header_line(file: TextFile) -> int:
    """Line of the header: the first, or the one after `# kernelcast.csv/…`."""
    marker = re.match(r"#\s*(\S+)", file.text)
    if marker is None:
        return 1
    if marker[1] != CSV_FORMAT:
        raise DataError(f"{file.path}:1: found format {marker[1]!r:.40}, expected {CSV_FORMAT!r}")
    return 2


def _operator(row: CsvRow) -> Operator:
    name = row.text("operator")
    try:
        return operator_called(name)
    except UsageError:
        raise Malformed(f"operator {name!r:.60} is unknown; docs/importing.md lists them") from None


def _sample(row: CsvRow, operator: Operator, run_id: str, description: Description) -> Sample:
    cells = row.cells
    repetitions_us = _repetitions_us(cells.get("repetitions_us", ""))
    return imported_sample(
        run_id=run_id,
        operator=operator,
        direction=checked_direction(operator, cells.get("direction", "")),
        dtype=checked_dtype(cells.get("dtype", description.row_default("dtype"))),
        vector=_vector(row, operator),
        time_us=None if repetitions_us else row.positive("time_us"),
        statistic=cells.get("statistic", description.row_default("statistic")),
        repetition_count=row.whole("repetitions") if "repetitions" in cells else 0,
        repetitions_us=repetitions_us,
        variant=cells.get("variant", description.row_default("variant")),
        measured_at=cells.get("measured_at"),
    )


def _vector(row: CsvRow, operator: Operator) -> tuple[int, ...]:
    """The features where all of them are there, else what follows from the raw parameters."""
    if all(name in row.cells for name in operator.features):
        return tuple(row.whole(name) for name in operator.features)
    vector = workload_vector(operator, {name: row.whole(name) for name in _RAW if name in row.cells})
    for name, value in zip(operator.features, vector, strict=True):
        if name in row.cells and row.whole(name) != value:
            raise Malformed(f"{name}: found {row.cells[name]}, but the raw parameters give {value}")
    return vector


def _repetitions_us(text: str) -> tuple[float, ...]:
    parts = text.split(";") if text else []
    if len(parts) > _MAX_REPETITIONS:
        raise Malformed(f"repetitions_us: more than {_MAX_REPETITIONS} times in one row")
    return tuple(positive(part.strip(), "repetitions_us") for part in parts)
