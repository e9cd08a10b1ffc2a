"""Collectives inside a node, from the tables of the simulators vTrain and Vidur (CSV).

vTrain's files are tables of nccl-tests, one per number of GPUs, named like AR_GPU8.csv: size in bytes, then time in ns
and bus bandwidth, out of place and in place. Vidur's files are named by the collective: size in bytes, times in ms.
"""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.hardware.element_types import ELEMENT_BYTES
from kernelcast.runtime.operators import Direction, operator
from kernelcast.store.importers.csv_table import CsvRow, CsvTable, positive, whole
from kernelcast.store.importers.description import Description
from kernelcast.store.importers.parsed import Parsed, imported_sample
from kernelcast.store.importers.text_file import LeftOut, Malformed, Skipped, TextFile, read_text_file
from kernelcast.store.records import Sample

_VTRAIN_HEADER = ["size(B)", "count", "type", "time(ns)", "busbw(GB/s)", "time(ns)", "busbw(GB/s)"]
_VTRAIN_NAME = re.compile(r"AR_GPU([0-9]{1,4})\.csv")
_VTRAIN_TYPES = {"float": "float32", "half": "float16", "double": "float64", "bfloat16": "bfloat16"}
_LARGEST_DIFFERENCE = 0.05
"""Largest relative difference between the printed bus bandwidth, which has two decimals, and that of the time."""
_VIDUR_OPERATORS = {"all_reduce": "all_reduce", "send_recv": "point_to_point"}
_VIDUR_DTYPE = "float16"

_Reader = Callable[[TextFile, Skipped, str], Iterator[Sample]]


def read_vtrain(
    paths: Sequence[Path], *, described: Description | None = None, strict: bool = False
) -> Parsed:
    """Read all-reduces of vTrain, trace/NODE/AR_GPU*.csv.

    Raises:
        DataError: a file is not such a table, or, with `strict`, a line is malformed.
        UsageError: the description lacks the device or the devices per node.
    """
    return _read(paths, _vtrain_samples, "import vtrain", described, strict)


def read_vidur(
    paths: Sequence[Path], *, described: Description | None = None, strict: bool = False
) -> Parsed:
    """Read collectives of Vidur, data/profiling/network/NODE/*.csv; only rows within one node.

    Raises:
        DataError: a file is not such a table, or, with `strict`, a line is malformed.
        UsageError: the description lacks the device or the devices per node.
    """
    return _read(paths, _vidur_samples, "import vidur", described, strict)


def _read(
    paths: Sequence[Path], reader: _Reader, command: str, described: Description | None, strict: bool
) -> Parsed:
    description = described or Description()
    parsed = Parsed(strict=strict, files=len(paths))
    fabric = description.network()
    for path in paths:
        file = read_text_file(path)
        parsed.add_run(command, file, description, partial(reader, file, parsed), fabric=fabric)
    return parsed.checked(paths)


def _vtrain_samples(file: TextFile, skipped: Skipped, run_id: str) -> Iterator[Sample]:
    named = _VTRAIN_NAME.fullmatch(file.name)
    if named is None:
        raise DataError(
            f"{file.path}: is not vTrain's: name is {file.name!r:.60}, expected AR_GPU8.csv or similar"
        )
    processes = int(named[1])
    rows = csv.reader(StringIO(file.text, newline=""))
    if (header := next(rows)) != _VTRAIN_HEADER:
        raise DataError(
            f"{file.path}: is not vTrain's: columns are {header!r:.80}, expected {_VTRAIN_HEADER}"
        )
    for line, cells in enumerate(rows, start=2):
        with skipped.row(file.path, line):
            yield from _vtrain_row(cells, processes, run_id)


def _vtrain_row(cells: Sequence[str], processes: int, run_id: str) -> list[Sample]:
    if len(cells) != len(_VTRAIN_HEADER):
        raise Malformed(f"found {len(cells)} cells, expected {len(_VTRAIN_HEADER)} columns")
    size, count, type_name = whole(cells[0], "size(B)"), whole(cells[1], "count"), cells[2].strip()
    dtype = _VTRAIN_TYPES.get(type_name)
    if dtype is None or count * ELEMENT_BYTES[dtype] != size:
        raise Malformed(f"size(B) is {size}, which differs from count {count} of {type_name!r:.20}")
    samples = []
    for place, first in (("out-of-place", 3), ("in-place", 5)):
        time_us = positive(cells[first], "time(ns)") / 1e3
        bandwidth = positive(cells[first + 1], "busbw(GB/s)")
        implied = 2 * (processes - 1) / processes * size / time_us / 1e3
        if abs(implied / bandwidth - 1) > _LARGEST_DIFFERENCE:
            raise Malformed(f"time(ns): {time_us * 1e3:g} is {implied:.4g} GB/s, expected {bandwidth:g}")
        details = {"run_id": run_id, "time_us": time_us, "statistic": "mean of several", "variant": place}
        samples.append(_sample("all_reduce", dtype, count, processes, **details))
    return samples


def _vidur_samples(file: TextFile, skipped: Skipped, run_id: str) -> Iterator[Sample]:
    table = CsvTable(file)
    table.require(("num_workers", "devices_per_node", "size", "collective"), "Vidur's table of a collective")
    for row in table.rows(skipped):
        with skipped.row(file.path, row.line):
            collective = row.text("collective")
            if collective not in _VIDUR_OPERATORS:
                raise Malformed(
                    f"collective: found {collective!r:.40}, expected {' or '.join(_VIDUR_OPERATORS)}"
                )
            if row.whole("num_workers") != row.whole("devices_per_node"):
                raise LeftOut("between nodes, whose fabric is unknown")
            yield _vidur_row(row, collective, run_id)


def _vidur_row(row: CsvRow, collective: str, run_id: str) -> Sample:
    entries, rest = divmod(row.whole("size"), ELEMENT_BYTES[_VIDUR_DTYPE])
    if rest:
        raise Malformed(f"size: {row.whole('size')} bytes are no whole number of {_VIDUR_DTYPE} elements")
    time_us = row.positive(f"time_stats.{collective}.median") * 1e3
    details = {"run_id": run_id, "time_us": time_us, "statistic": "median of several"}
    return _sample(_VIDUR_OPERATORS[collective], _VIDUR_DTYPE, entries, row.whole("num_workers"), **details)


def _sample(name: str, dtype: str, entries: int, processes: int, **details: Any) -> Sample:
    return imported_sample(operator(name), Direction.ONCE, dtype, (entries, 1, processes), **details)
