"""Data files of the method's authors (`estimate-train-time`), one folder per site (docs/importing.md).

`operator/GPU_FUNCTION_PRECISION.csv` holds raw parameters and times forward and backward (or one time),
`nccl/GPU_FUNCTION_PRECISION[_NODES_GPUSPERNODE].csv` entries, layout and time. Times are means of the middle
five of ten repetitions, in µs. `GPU.csv` next to them lists the validation errors of the authors' regressors.
"""

import ast
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import OPERATORS, Direction, Vector, operator
from kernelcast.store.importers.description import Description, device_named
from kernelcast.store.importers.parsed import Parsed, TimedRow
from kernelcast.store.importers.raw_parameters import workload_vector
from kernelcast.store.importers.tables import Cells, CsvTable, LeftOut, Malformed, Skipped, read_text_file
from kernelcast.store.records import MIDDLE_FIVE_OF_TEN
from kernelcast.store.statistics import PAPER_REPETITIONS

VOCABULARY = 50_257
"""Tokens of the GPT-NeoX-20B tokenizer, before the authors' padding."""

_TIMES = {"F_dur(us)": Direction.FORWARD, "B_dur(us)": Direction.BACKWARD, "dur(us)": Direction.ONCE}
_COLUMN_OF = {"d": "dim", "tp": "mp", "layers": "encoders"}  # columns with other names than the symbols
_WHAT = "a file of estimate-train-time"


@dataclass(frozen=True, slots=True)
class Function:
    """The operator, role and variant that a function measures, and the raw parameters in its file."""

    operator: str
    role: str = ""
    variant: str = ""
    parameters: Sequence[str] = ()


_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_SITES = {name: Description(**tables) for name, tables in _DATA["sites"].items()}
FUNCTIONS = {name: Function(**row) for name, row in _DATA["functions"].items()}
COLLECTIVES = {name: Function(**row) for name, row in _DATA["collectives"].items()}
_OLDER_FORMAT = "optimizer"
DTYPES: Mapping[str, str] = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}

_FILE_NAME = re.compile(
    r"(?P<gpu>[^_]+)_(?P<function>\w+?)_(?P<precision>[a-z]+\d+)(?:_(?P<nodes>\d+)_(?P<gpus>\d+))?\.csv",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A measurement file by its name; `layout` is (nodes, GPUs per node), or None."""

    path: Path
    gpu: str
    function: str
    precision: str
    layout: tuple[int, int] | None

    @classmethod
    def named(cls, path: Path) -> "DataFile | None":
        """The parts of the file's name, or None if it is not a measurement file."""
        match = _FILE_NAME.fullmatch(path.name)
        if match is None or match["precision"] not in DTYPES:
            return None
        layout = (int(match["nodes"]), int(match["gpus"])) if match["nodes"] else None
        parts = {name: match[name] for name in ("gpu", "function", "precision")}
        return cls(path=path, layout=layout, **parts)


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
    DataError for a folder without such files, a file that differs from its name, or, with `strict`, a malformed line.
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


def data_files(directory: Path) -> list[DataFile]:
    """Measurement files of a site's folder, those with a layout first, as others repeat them; DataError without any."""
    if not directory.is_dir():
        found = "is not a folder" if directory.exists() else "no such folder"
        raise DataError(f"{directory}: {found}; expected one with operator/ and nccl/ in it")
    paths = sorted(path for part in ("operator", "nccl") for path in directory.glob(f"{part}/*.csv"))
    files = [file for file in map(DataFile.named, paths) if file is not None]
    if not files:
        raise DataError(f"{directory}: holds no operator/GPU_FUNCTION_fp16.csv and no nccl/ file like it")
    return sorted(files, key=lambda file: (file.layout is None, file.path))


def _described_by_name(directory: Path, files: Sequence[DataFile]) -> Description:
    names = sorted({file.gpu for file in files})
    if len(names) > 1:
        raise DataError(f"{directory}: files of several devices ({', '.join(names)}), expected one")
    layouts = [file.layout[1] for file in files if file.layout is not None]
    [name] = names
    device = re.sub(r"^NVIDIA(?=\S)", "NVIDIA ", name)  # file names have no blanks
    known = _SITES.get(directory.resolve().name, Description())
    return known.over(
        Description(hardware=device_named(device), fabric={"gpus_per_node": max(layouts, default=1)})
    )


def _read_file(file: DataFile, site: _Site) -> None:
    is_collective = file.path.parent.name == "nccl"
    function = (COLLECTIVES if is_collective else FUNCTIONS).get(file.function)
    table, parsed = CsvTable.of(read_text_file(file.path)), site.parsed
    if function is None:
        older = " (older format)" if file.function == _OLDER_FORMAT else ""
        reason = f"of {file.function}: no operator for it{older}"
        parsed.left_out[reason] += len(list(table.rows(parsed)))
        return
    fabric = site.description.network() if is_collective else None
    convert = _collective(file, table, function, site) if is_collective else _operator(table, function)
    rows = parsed.read(table, partial(_timed, file, function, convert))
    parsed.add_run("import estimate-train-time", table, site.description, rows, fabric=fabric)


def _operator(table: CsvTable, function: Function) -> Callable[[Cells], Vector]:
    law = operator(function.operator)
    times = [name for name, direction in _TIMES.items() if direction in law.costs]
    columns = {_COLUMN_OF.get(symbol, symbol): symbol for symbol in function.parameters}
    table.require((*columns, *times), _WHAT)
    if odd := [name for name in table.columns if name not in {*columns, *times, "mp", "dim"}]:
        raise DataError(f"{table.path}: is not {_WHAT}: column {odd[0]!r:.40} is unknown for {law.name}")

    def vector(cells: Cells) -> Vector:
        given = {symbol: cells.whole(column) for column, symbol in columns.items()}
        given |= {"tp": cells.whole("mp") if "mp" in cells.cells else 1, "v_raw": VOCABULARY}
        # The width of Linear1 is 3d/tp for any number of heads; its file has none.
        given.setdefault("h", given["tp"])
        return workload_vector(law, function.role, given)

    return vector


def _collective(
    file: DataFile, table: CsvTable, function: Function, site: _Site
) -> Callable[[Cells], Vector]:
    table.require(("shape", "nodes", "GPUsPerNode", "dur(us)"), _WHAT)

    def vector(cells: Cells) -> Vector:
        found = cells.wholes("shape", "nodes", "GPUsPerNode")
        if file.layout not in (None, found[1:]):
            raise Malformed(f"layout {found[1]} x {found[2]}, but the file's name has another")
        seen = (file.function, file.precision, found, cells.positive("dur(us)"))
        if file.layout is not None:
            site.layouts_seen.add(seen)
        elif seen in site.layouts_seen:
            raise LeftOut(f"of {file.function}: repeated from the files of single layouts")
        return found

    return vector


def _timed(
    file: DataFile, function: Function, convert: Callable[[Cells], Vector], cells: Cells
) -> Iterator[TimedRow]:
    vector = convert(cells)
    for column, direction in _TIMES.items():
        if direction in operator(function.operator).costs:
            yield TimedRow(
                line=cells.line,
                operator=function.operator,
                direction=direction,
                dtype=DTYPES[file.precision],
                vector=vector,
                role=function.role,
                variant=function.variant,
                time_us=cells.positive(column),
                statistic=MIDDLE_FIVE_OF_TEN,
                repetition_count=PAPER_REPETITIONS,
            )


_ALGORITHMS = {"rforest": "random_forest", "xgboost": "xgboost"}
_DIRECTIONS = {"fwd": Direction.FORWARD, "bwd": Direction.BACKWARD, "dur": Direction.ONCE}
_LONGEST_SETTINGS = 2_000
_WHAT_OF_ERRORS = "a list of the authors' regressors"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedError:
    """The error of a regressor. `validation_error` is a fraction, on a split of 20 %.

    `nodes` and `gpus_per_node` are the layout of a collective, both 0 for a regressor of all layouts; None for
    operators.
    """

    operator: str
    role: str
    direction: Direction
    dtype: str
    nodes: int | None
    gpus_per_node: int | None
    algorithm: str
    hyperparameters: Mapping[str, Any]
    validation_error: float


def read_published_errors(directory: Path) -> tuple[PublishedError, ...]:
    """Errors in a site's folder, in the order of the table of operators, then by layout.

    Functions without an operator are left out. DataError without such a folder, or where a file is not such a list, or
    a line is malformed.
    """
    device = data_files(directory)[0].gpu
    paths = [path for part in ("operator", "nccl") if (path := directory / part / f"{device}.csv").is_file()]
    if not paths:
        raise DataError(f"{directory}: holds no operator/{device}.csv and no nccl/{device}.csv")
    order = [(row.name, role) for row in OPERATORS.values() for role in row.roles]
    return tuple(
        sorted(
            (error for path in paths for error in _errors(path)),
            key=lambda e: (
                order.index((e.operator, e.role)),
                e.direction.value,
                e.nodes or 0,
                e.gpus_per_node or 0,
            ),
        )
    )


def _errors(path: Path) -> Iterator[PublishedError]:
    table = CsvTable.of(read_text_file(path))
    table.require(("Function", "Precision", "Best_model", "Best_config", "Best_error%"), _WHAT_OF_ERRORS)
    is_collective = path.parent.name == "nccl"
    table.require(("Nodes", "GPUsPerNode") if is_collective else ("Propagation",), _WHAT_OF_ERRORS)
    functions = COLLECTIVES if is_collective else FUNCTIONS
    for row in table.rows(Skipped(strict=True)):
        function = functions.get(row.cells.get("Function", ""))
        if function is None:
            continue
        try:
            yield _error(row, function, is_collective=is_collective)
        except (Malformed, KeyError, ValueError, SyntaxError) as error:
            raise DataError(f"{path}:{row.line}: is not {_WHAT_OF_ERRORS} ({error})") from error


def _error(row: Cells, function: Function, *, is_collective: bool) -> PublishedError:
    settings = row.text("Best_config")
    if len(settings) > _LONGEST_SETTINGS:
        raise Malformed(f"Best_config: more than {_LONGEST_SETTINGS} characters")
    hyperparameters = ast.literal_eval(settings)  # literals only: no code of the file runs
    if not isinstance(hyperparameters, dict):
        raise Malformed(f"Best_config: found {settings!r:.40}, expected a dictionary")
    return PublishedError(
        operator=function.operator,
        role=function.role,
        direction=Direction.ONCE if is_collective else _DIRECTIONS[row.text("Propagation")],
        dtype=DTYPES[row.text("Precision")],
        nodes=int(row.text("Nodes")) if is_collective else None,
        gpus_per_node=int(row.text("GPUsPerNode")) if is_collective else None,
        algorithm=_ALGORITHMS[row.text("Best_model")],
        hyperparameters=MappingProxyType(hyperparameters),
        validation_error=row.positive("Best_error%"),
    )
