"""Data files of the method's authors (`estimate-train-time`), one folder per site (docs/importing.md).

`operator/GPU_FUNCTION_PRECISION.csv` holds raw parameters and times forward and backward (or one time),
`nccl/GPU_FUNCTION_PRECISION[_NODES_GPUSPERNODE].csv` entries, layout and time. Times are means of the middle
five of ten repetitions, in µs.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import Direction, operator
from kernelcast.store.importers.csv_table import CsvRow, CsvTable
from kernelcast.store.importers.description import Description, device_named
from kernelcast.store.importers.estimate_train_time_files import (
    COLLECTIVES,
    DTYPES,
    FUNCTIONS,
    OLDER_FORMAT,
    DataFile,
    Function,
    data_files,
)
from kernelcast.store.importers.parsed import Parsed, imported_sample
from kernelcast.store.importers.raw_parameters import workload_vector
from kernelcast.store.importers.text_file import LeftOut, Malformed, read_text_file
from kernelcast.store.records import MIDDLE_FIVE_OF_TEN, Sample
from kernelcast.store.statistics import PAPER_REPETITIONS

VOCABULARY = 50_257
"""Tokens of the GPT-NeoX-20B tokenizer, before the authors' padding."""

_TIMES = {"F_dur(us)": Direction.FORWARD, "B_dur(us)": Direction.BACKWARD, "dur(us)": Direction.ONCE}
_COLUMN_OF = {"d": "dim", "tp": "mp", "layers": "encoders"}  # columns with other names than the symbols
_WHAT = "a file of estimate-train-time"

# Published facts about the sites that the files lack.
_SITES = {
    "Perlmutter": Description(
        fabric={"gpus_per_node": 4, "links": ("NVLink 3",), "nics": ("200 Gb/s Slingshot 11 ×4",)},
        source={"licence": "MIT", "reference": "arXiv 2509.22832", "site": "Perlmutter"},
    ),
    "Vista": Description(
        fabric={"gpus_per_node": 1, "nics": ("400 Gb/s InfiniBand NDR ×1",)},
        source={"licence": "MIT", "reference": "arXiv 2509.22832", "site": "Vista"},
    ),
}


@dataclass(slots=True, kw_only=True)
class _Site:
    """One folder while it is read."""

    description: Description
    parsed: Parsed
    layouts_seen: set[tuple[object, ...]] = field(default_factory=set)


def read_estimate_train_time(
    directories: Sequence[Path],
    *,
    described: Description | None = None,
    strict: bool = False,
    on_progress: Callable[[int, int, str], None] = lambda done, total, file: None,
) -> Parsed:
    """Read folders of sites.

    Files without a layout in their name repeat rows of files with a layout; the repeated rows are left out.
    `on_progress` gets the number of files read, the number in the folder, and the last file's function.

    Raises:
        DataError: not such a folder, a file differs from its name, or, with `strict`, a line is malformed.
    """
    parsed = Parsed(strict=strict)
    for directory in directories:
        files = data_files(directory)
        parsed.files += len(files)
        description = (described or Description()).over(_described_by_name(directory, files))
        site = _Site(description=description, parsed=parsed)
        for done, file in enumerate(files, start=1):
            _read_file(file, site)
            on_progress(done, len(files), file.function)
    return parsed.checked(directories)


def _described_by_name(directory: Path, files: Sequence[DataFile]) -> Description:
    names = sorted({file.gpu for file in files})
    if len(names) > 1:
        raise DataError(f"{directory}: files of several devices ({', '.join(names)}), expected one")
    layouts = [file.layout[1] for file in files if file.layout is not None]
    device = re.sub(r"^NVIDIA(?=\S)", "NVIDIA ", names[0])  # file names have no blanks
    known = _SITES.get(directory.resolve().name, Description())
    return known.over(
        Description(hardware=device_named(device), fabric={"gpus_per_node": max(layouts, default=1)})
    )


def _read_file(file: DataFile, site: _Site) -> None:
    is_collective = file.path.parent.name == "nccl"
    function = (COLLECTIVES if is_collective else FUNCTIONS).get(file.function)
    text = read_text_file(file.path)
    table = CsvTable(text)
    if function is None:
        older = " (older format)" if file.function == OLDER_FORMAT else ""
        reason = f"of {file.function}: no operator for it{older}"
        site.parsed.left_out[reason] += len(list(table.rows(site.parsed)))
        return
    fabric = site.description.network() if is_collective else None
    read = _collective_samples if is_collective else _operator_samples
    site.parsed.add_run(
        "import estimate-train-time",
        text,
        site.description,
        partial(read, file, table, function, site),
        fabric=fabric,
    )


def _operator_samples(
    file: DataFile, table: CsvTable, function: Function, site: _Site, run_id: str
) -> Iterator[Sample]:
    row = operator(function.operator)
    times = [name for name, direction in _TIMES.items() if direction in row.costs]
    columns = {_COLUMN_OF.get(symbol, symbol): symbol for symbol in function.parameters}
    table.require((*columns, *times), _WHAT)
    if odd := [name for name in table.columns if name not in {*columns, *times, "mp", "dim"}]:
        raise DataError(f"{file.path}: is not {_WHAT}: column {odd[0]!r:.40} is unknown for {row.name}")
    for cells in table.rows(site.parsed):
        with site.parsed.row(file.path, cells.line):
            given = {symbol: cells.whole(column) for column, symbol in columns.items()}
            given |= {"tp": cells.whole("mp") if "mp" in cells.cells else 1, "v_raw": VOCABULARY}
            # The width of Linear1 is 3d/tp for any number of heads; its file has none.
            given.setdefault("h", given["tp"])
            vector = workload_vector(row, function.role, given)
            yield from [_sample(file, cells, column, function, vector, run_id) for column in times]


def _collective_samples(
    file: DataFile, table: CsvTable, function: Function, site: _Site, run_id: str
) -> Iterator[Sample]:
    table.require(("shape", "nodes", "GPUsPerNode", "dur(us)"), _WHAT)
    for cells in table.rows(site.parsed):
        with site.parsed.row(file.path, cells.line):
            vector = (cells.whole("shape"), cells.whole("nodes"), cells.whole("GPUsPerNode"))
            if file.layout not in (None, vector[1:]):
                raise Malformed(f"layout {vector[1]} x {vector[2]}, but the file's name has another")
            sample = _sample(file, cells, "dur(us)", function, vector, run_id)
            seen = (file.function, file.precision, vector, sample.time_us)
            if file.layout is not None:
                site.layouts_seen.add(seen)
            elif seen in site.layouts_seen:
                raise LeftOut(f"of {file.function}: repeated from the files of single layouts")
            yield sample


def _sample(
    file: DataFile, cells: CsvRow, column: str, function: Function, vector: tuple[int, ...], run_id: str
) -> Sample:
    return imported_sample(
        operator(function.operator),
        _TIMES[column],
        DTYPES[file.precision],
        vector,
        run_id=run_id,
        role=function.role,
        variant=function.variant,
        time_us=cells.positive(column),
        statistic=MIDDLE_FIVE_OF_TEN,
        repetition_count=PAPER_REPETITIONS,
    )
