"""The data files of the method's authors (`estimate-train-time`), one folder per site (docs/importing.md).

`operator/GPU_FUNCTION_PRECISION.csv` holds raw parameters and times forward and backward (or one time),
`nccl/GPU_FUNCTION_PRECISION[_NODES_GPUSPERNODE].csv` entries, layout and time. Times are means of the middle
five of ten repetitions, in µs.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import Direction, Operator, operator
from kernelcast.store.importers.csv_table import CsvRow, CsvTable
from kernelcast.store.importers.description import Description, device_named
from kernelcast.store.importers.estimate_train_time_files import (
    COLLECTIVES,
    DTYPES,
    FUNCTIONS,
    OLDER_FORMAT,
    DataFile,
    data_files,
)
from kernelcast.store.importers.imported_sample import imported_sample
from kernelcast.store.importers.parsed import Batch, Parsed
from kernelcast.store.importers.problems import Malformed, Problems
from kernelcast.store.importers.raw_parameters import workload_vector
from kernelcast.store.importers.text_file import TextFile, read_text_file
from kernelcast.store.records import MIDDLE_FIVE_OF_TEN, Sample
from kernelcast.store.runs import Run
from kernelcast.store.statistics import PAPER_REPETITIONS

VOCABULARY = 50_257
"""Tokens of the GPT-NeoX-20B tokenizer, which all of the authors' vocabularies are padded from."""

_TIMES = MappingProxyType(
    {"F_dur(us)": Direction.FORWARD, "B_dur(us)": Direction.BACKWARD, "dur(us)": Direction.ONCE}
)
_COLUMN_OF = MappingProxyType({"d": "dim"})  # theirs, where it is called other than the method's symbol
_WHAT = "a file of estimate-train-time"

# What is published about their sites, beside the files.
_SITES = MappingProxyType(
    {
        "Perlmutter": Description(
            fabric={"gpus_per_node": 4, "links": ("NVLink 3",), "nics": ("Slingshot",)},
            source={"licence": "MIT", "reference": "arXiv 2509.22832", "site": "Perlmutter"},
        )
    }
)


@dataclass(slots=True, kw_only=True)
class _Site:
    """One folder while it is read."""

    description: Description
    problems: Problems
    left_out: Counter[str]
    layouts_seen: set[tuple[object, ...]] = field(default_factory=set)


def read_estimate_train_time(
    directories: Sequence[Path],
    *,
    described: Description | None = None,
    strict: bool = False,
    on_progress: Callable[[int, int, str], None] = lambda done, total, file: None,
) -> Parsed:
    """Read one site folder or several.

    A file without layout in its name repeats the files with one: rows that it shares with them are left out.
    `on_progress` is told the files read so far of a folder's, and the last one's function.

    Raises:
        DataError: not such a folder, a file is not what its name claims, or, when `strict`, a malformed line.
    """
    problems = Problems(strict=strict)
    parsed = Parsed()
    for directory in directories:
        files = data_files(directory)
        parsed.files += len(files)
        description = (described or Description()).over(_described_by_name(directory, files))
        site = _Site(description=description, problems=problems, left_out=parsed.left_out)
        for done, file in enumerate(files, start=1):
            if (batch := _batch(file, site)) is not None:
                parsed.add(batch)
            on_progress(done, len(files), file.function)
    parsed.problems = problems.found
    parsed.check_something(", ".join(map(str, directories)))
    return parsed


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


def _batch(file: DataFile, site: _Site) -> Batch | None:
    is_collective = file.path.parent.name == "nccl"
    name = (COLLECTIVES if is_collective else FUNCTIONS).get(file.function)
    text = read_text_file(file.path)
    table = CsvTable(text)
    if name is None:
        older = " (older format)" if file.function == OLDER_FORMAT else ""
        site.left_out[f"of {file.function}: no operator for it{older}"] += len(
            list(table.rows(site.problems))
        )
        return None
    fabric = site.description.network() if is_collective else None
    run = site.description.run(
        command="import estimate-train-time", file_name=text.name, file_digest=text.digest, fabric=fabric
    )
    read = _collective_samples if is_collective else _operator_samples
    return Batch(
        run=run,
        compute=site.description.compute(),
        fabric=fabric,
        software=site.description.versions(),
        samples=list(read(file, text, table, operator(name), run, site)),
    )


def _operator_samples(
    file: DataFile, text: TextFile, table: CsvTable, row: Operator, run: Run, site: _Site
) -> Iterator[Sample]:
    times = [name for name, direction in _TIMES.items() if direction in row.directions]
    parameters = _parameters(row)
    table.require([_COLUMN_OF.get(name, name) for name in parameters if name != "mp"], _WHAT)
    table.require(times, _WHAT)
    known = {*times, "mp", *(_COLUMN_OF.get(name, name) for name in parameters), "dim"}
    if odd := [name for name in table.columns if name not in known]:
        raise DataError(f"{file.path}: is not {_WHAT}: column {odd[0]!r:.40} is unknown for {row.name}")
    for cells in table.rows(site.problems):
        try:
            vector = workload_vector(row, _given(row, cells, parameters))
            yield from [_sample(file, cells, column, row, vector, run) for column in times]
        except Malformed as error:
            site.problems.add(file.path, cells.line, error)


def _parameters(row: Operator) -> tuple[str, ...]:
    """Their columns, by the method's symbols."""
    if row.name.startswith("optimizer"):
        return ("mp", "d", "encoders")
    needs_heads = {"heads", "batch_heads"} & set(row.features)
    needs_hidden = {"d", "head_size", "k", "width"} & set(row.features)
    return ("mp", "b", "l", *(["h"] if needs_heads else []), *(["d"] if needs_hidden else []))


def _given(row: Operator, cells: CsvRow, parameters: Sequence[str]) -> dict[str, int]:
    given = {"mp": 1, "v_raw": VOCABULARY}
    for name in parameters:
        column = _COLUMN_OF.get(name, name)
        if name != "mp" or column in cells.cells:
            given[name] = cells.whole(column)
    # Linear1's width is 3d/mp whatever the number of heads, which their file does not name.
    given.setdefault("h", given["mp"])
    return given


def _collective_samples(
    file: DataFile, text: TextFile, table: CsvTable, row: Operator, run: Run, site: _Site
) -> Iterator[Sample]:
    table.require(("shape", "nodes", "GPUsPerNode", "dur(us)"), _WHAT)
    for cells in table.rows(site.problems):
        try:
            vector = (cells.whole("shape"), cells.whole("nodes"), cells.whole("GPUsPerNode"))
            if file.layout not in (None, vector[1:]):
                raise Malformed(f"layout {vector[1]} x {vector[2]}, but the file's name says otherwise")
            sample = _sample(file, cells, "dur(us)", row, vector, run)
        except Malformed as error:
            site.problems.add(file.path, cells.line, error)
            continue
        seen = (file.function, file.precision, vector, sample.time_us)
        if file.layout is not None:
            site.layouts_seen.add(seen)
        elif seen in site.layouts_seen:
            site.left_out[f"of {file.function}: repeated from the files of single layouts"] += 1
            continue
        yield sample


def _sample(
    file: DataFile, cells: CsvRow, column: str, row: Operator, vector: tuple[int, ...], run: Run
) -> Sample:
    return imported_sample(
        run_id=run.id,
        operator=row,
        direction=_TIMES[column],
        dtype=DTYPES[file.precision],
        vector=vector,
        time_us=cells.positive(column),
        statistic=MIDDLE_FIVE_OF_TEN,
        repetition_count=PAPER_REPETITIONS,
    )
