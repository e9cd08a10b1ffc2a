"""Operators of inference frameworks from aiconfigurator's Parquet files, one file or a folder.

aiconfigurator_tables.py reads rows as workloads. A file holds one framework and device, sometimes several versions of
the framework; of rows with the same key the newest version is used.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.hardware.load import Load
from kernelcast.runtime.operators import OPERATORS
from kernelcast.store.importers.aiconfigurator_tables import COMMON_COLUMNS, TABLES, Workload
from kernelcast.store.importers.csv_table import CsvRow
from kernelcast.store.importers.description import REPOSITORIES, Description, device_named
from kernelcast.store.importers.parquet_table import ParquetTable, read_parquet
from kernelcast.store.importers.parsed import Parsed, imported_sample
from kernelcast.store.importers.text_file import LeftOut, Skipped
from kernelcast.store.records import Sample

_WHAT = "a table of aiconfigurator"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A usable row of a file."""

    line: int
    device: str
    framework: str
    version: str
    workload: Workload
    time_us: float
    power_w: float | None
    power_limit_w: float | None

    @property
    def key(self) -> tuple[object, ...]:
        one = self.workload
        return self.device, self.framework, one.operator, one.dtype, one.vector, one.variant


def read_aiconfigurator(
    paths: Sequence[Path],
    *,
    described: Description | None = None,
    commit: str = "",
    strict: bool = False,
) -> Parsed:
    """Read files, and the `*.parquet` of folders.

    Devices per node are the largest number of devices in a collective of the files, unless `described` has them.

    Raises:
        DataError: a file is not such a table (in a folder this is a malformed line), no row is usable, or, with
            `strict`, a line is malformed.
        UsageError: pyarrow is not installed, or `commit` is no commit.
    """
    description = (described or Description()).over(REPOSITORIES["aiconfigurator"].described(commit))
    parsed = Parsed(strict=strict)
    read = [(table, _rows(table, parsed)) for table in _tables(paths, parsed)]
    parsed.files = len(read)
    processes = [
        row.workload.vector[-1]
        for _, rows in read
        for row in rows
        if OPERATORS[row.workload.operator].is_collective
    ]
    if processes:
        description = description.over(Description(fabric={"gpus_per_node": max(processes)}))
    for table, rows in read:
        _add_runs(table, rows, description, parsed)
    return parsed.checked(paths)


def _tables(paths: Sequence[Path], skipped: Skipped) -> Iterator[ParquetTable]:
    for path in paths:
        if not path.is_dir():
            yield _table(path)
            continue
        files = sorted(path.rglob("*.parquet"))
        if not files:
            raise DataError(f"{path}: no Parquet file in it, expected {_WHAT}")
        for file in files:
            try:
                yield _table(file)
            except DataError as error:
                skipped.malformed(file, 1, str(error).removeprefix(f"{file}: "))


def _table(path: Path) -> ParquetTable:
    table = read_parquet(path)
    if missing := table.missing(COMMON_COLUMNS):
        found = ", ".join(table.columns)
        raise DataError(f"{path}: is not {_WHAT}: no column {missing!r}; found {found!r:.120}")
    return table


def _rows(table: ParquetTable, skipped: Skipped) -> list[_Row]:
    """The usable rows of the newest version of each key, in the file's order."""
    found: list[_Row] = []
    for cells in table.rows():
        with skipped.row(table.path, cells.line):
            found.append(_row(cells))
    newest: dict[tuple[object, ...], str] = {}
    for row in found:
        known = newest.setdefault(row.key, row.version)
        if _version(row.version) > _version(known):
            newest[row.key] = row.version
    kept = [row for row in found if row.version == newest[row.key]]
    if older := len(found) - len(kept):
        skipped.left_out["of an older version of the framework, measured again with a newer one"] += older
    return kept


def _row(cells: CsvRow) -> _Row:
    op_name = cells.text("op_name")
    if op_name not in TABLES:
        raise LeftOut(f"of {op_name:.60}: no operator for it")
    return _Row(
        line=cells.line,
        device=cells.text("device"),
        framework=cells.text("framework"),
        version=cells.text("version"),
        workload=TABLES[op_name](cells),
        time_us=cells.positive("latency") * 1e3,
        power_w=_watts(cells, "power"),
        power_limit_w=_watts(cells, "power_limit") if "power" in cells.cells else None,
    )


def _watts(cells: CsvRow, name: str) -> float | None:
    """Watts to four digits, or None."""
    return float(f"{cells.positive(name):.4g}") if name in cells.cells else None


def _version(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key of versions: `1.0rc1` before `1.0` before `1.0post1`."""
    parts = re.findall(r"\d+|[a-z]+", text.lower())
    numbers = ((2, int(part), "") if part.isdigit() else (int(part == "post"), 0, part) for part in parts)
    return (*numbers, (0, 1, ""))


def _add_runs(table: ParquetTable, rows: Sequence[_Row], description: Description, parsed: Parsed) -> None:
    """Add a run per device and framework, with a separate run of collectives, whose software is NCCL."""
    groups: dict[tuple[str, str, bool], list[_Row]] = {}
    for row in rows:
        is_collective = OPERATORS[row.workload.operator].is_collective
        groups.setdefault((row.device, row.framework, is_collective), []).append(row)
    for (device, framework, is_collective), own in groups.items():
        versions = sorted({row.version for row in own}, key=_version)
        if is_collective:
            stated = Description(
                hardware=device_named(device),
                software={"nccl": versions[-1]},
                conditions={"benchmark": "nccl-tests"},
            )
        else:
            stated = Description(
                hardware=device_named(device),
                conditions={"framework": framework, "framework_versions": versions},
            )
        whole = description.over(stated)
        parsed.add_run(
            "import aiconfigurator",
            table,
            whole,
            partial(_samples, table, own, parsed),
            fabric=whole.network() if is_collective else None,
        )


def _samples(table: ParquetTable, rows: Sequence[_Row], skipped: Skipped, run_id: str) -> Iterator[Sample]:
    for row in rows:
        one = row.workload
        with skipped.row(table.path, row.line):
            yield imported_sample(
                OPERATORS[one.operator],
                one.direction,
                one.dtype,
                one.vector,
                run_id=run_id,
                time_us=row.time_us,
                statistic=_statistic(row),
                repetition_count=one.repetitions,
                variant=one.variant,
                load=Load.BURST if one.burst else Load.NOT_STATED,
                power_w=row.power_w,
            )


def _statistic(row: _Row) -> str:
    """What the time is the mean of, and a power limit."""
    limit = "" if row.power_limit_w is None else f", power limit {row.power_limit_w:g} W"
    return f"mean of {row.workload.burst or row.workload.repetitions}{limit}"
