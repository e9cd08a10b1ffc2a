"""The generic CSV: a measured operator per row, for sites with scripts of their own (docs/importing.md)."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import OPERATORS, Operator, Vector
from kernelcast.store.importers.description import Description, read_description
from kernelcast.store.importers.parsed import Parsed, TimedRow, checked_direction, checked_dtype, read_files
from kernelcast.store.importers.raw_parameters import RAW_VOCABULARY, SYMBOLS, workload_vector
from kernelcast.store.importers.tables import Cells, CsvTable, Malformed, TextFile, positive, read_text_file

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


def _read(path: Path, description: Description, parsed: Parsed) -> None:
    file = read_text_file(path)
    if (neighbour := path.with_suffix(".toml")).is_file():
        description = description.over(read_description(neighbour))
    description.compute()
    rows = parsed.read(_table(file), partial(_row, description))
    for is_collective in (False, True):
        own = [row for row in rows if OPERATORS[row.operator].is_collective == is_collective]
        if own:
            fabric = description.network() if is_collective else None
            parsed.add_run("import csv", file, description, own, fabric=fabric)


read_csv_files = partial(read_files, _read, "")
"""Files in the generic format. `NAME.toml` next to `NAME.csv` describes it; given facts take precedence."""


def _table(file: TextFile) -> CsvTable:
    table = CsvTable.of(file, first_line=_header_line(file))
    table.require(("operator",), f"a {CSV_FORMAT} file")
    if not {"time_us", "repetitions_us"} & set(table.columns):
        table.require(("time_us",), f"a {CSV_FORMAT} file")
    for name in table.columns:
        if name not in _KNOWN and not name.startswith(_OWN_PREFIX):
            raise DataError(
                f"{file.path}: column {name!r:.40} is unknown; columns of your own start with {_OWN_PREFIX!r}"
            )
    return table


def _header_line(file: TextFile) -> int:
    """Line number of the header: 1, or 2 after `# kernelcast.csv/…`."""
    marker = re.match(r"#\s*(\S+)", file.text)
    if marker is None:
        return 1
    if marker[1] != CSV_FORMAT:
        raise DataError(f"{file.path}:1: found format {marker[1]!r:.40}, expected {CSV_FORMAT!r}")
    return 2


def _row(description: Description, cells: Cells) -> Iterator[TimedRow]:
    name, role = cells.text("operator"), cells.cells.get("role", "")
    if name not in OPERATORS:
        raise Malformed(f"operator {name!r:.60} is unknown; docs/importing.md lists them")
    law = OPERATORS[name]
    if role and role not in law.roles:
        expected = ", ".join(filter(None, law.roles)) or "none"
        raise Malformed(f"role: found {role!r:.40}, expected of {name}: {expected}")
    if law.is_collective:
        description.network()  # raises: the fabric is unknown
    given = {_PAPER_NAMES.get(column, column): cell for column, cell in cells.cells.items()}
    cells = replace(cells, cells=given)
    repetitions_us = _repetitions_us(given.get("repetitions_us", ""))

    def text(column: str) -> str:
        return given.get(column, description.row_default(column))

    yield TimedRow(
        line=cells.line,
        operator=name,
        direction=checked_direction(law, given.get("direction", "")),
        dtype=checked_dtype(text("dtype")),
        vector=_vector(cells, law, role),
        role=role,
        time_us=None if repetitions_us else cells.positive("time_us"),
        statistic=text("statistic"),
        repetition_count=cells.whole("repetitions") if "repetitions" in given else 0,
        repetitions_us=repetitions_us,
        variant=text("variant"),
        measured_at=given.get("measured_at"),
    )


def _vector(cells: Cells, law: Operator, role: str) -> Vector:
    """The stated features if complete, else the vector of the raw parameters."""
    stated = {name: cells.whole(name) for name in law.features if name in cells.cells}
    if law.equal_unless_measured and "h_kv" not in cells.cells:
        feature, partner = law.equal_unless_measured
        if law.features.keys() - stated.keys() == {feature}:
            stated[feature] = stated[partner]
    if len(stated) == len(law.features):
        return tuple(stated[name] for name in law.features)
    given = {name: cells.whole(name) for name in _RAW if name in cells.cells}
    vector = workload_vector(law, role, given)
    for name, value in zip(law.features, vector, strict=True):
        if stated.get(name, value) != value:
            raise Malformed(f"{name}: found {cells.cells[name]}, but the raw parameters give {value}")
    return vector


def _repetitions_us(text: str) -> tuple[float, ...]:
    parts = text.split(";") if text else []
    return tuple(positive(part.strip(), "repetitions_us") for part in parts)
