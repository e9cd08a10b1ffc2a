"""Collectives inside a node, from the tables of the simulators vTrain and Vidur (CSV).

vTrain's files are tables of nccl-tests, one per number of GPUs, named like AR_GPU8.csv: size in bytes, then time in ns
and bus bandwidth, out of place and in place. Vidur's files are named by the collective: size in bytes, times in ms.
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.hardware.devices import ELEMENT_BYTES
from kernelcast.store.importers.description import Description
from kernelcast.store.importers.parsed import Parsed, TimedRow, read_files
from kernelcast.store.importers.tables import Cells, CsvTable, LeftOut, Malformed, positive, read_text_file

_VTRAIN_HEADER = ("size(B)", "count", "type", "time(ns)", "busbw(GB/s)", "time(ns)", "busbw(GB/s)")
_VTRAIN_NAME = re.compile(r"AR_GPU([0-9]{1,4})\.csv")
_VTRAIN_TYPES = {"float": "float32", "half": "float16", "double": "float64", "bfloat16": "bfloat16"}
_LARGEST_DIFFERENCE = 0.05
"""Largest relative difference between the printed bus bandwidth, which has two decimals, and that of the time."""
_VIDUR_OPERATORS = {"all_reduce": "all_reduce", "send_recv": "point_to_point"}
_VIDUR_DTYPE = "float16"


def _vtrain(path: Path, description: Description, parsed: Parsed) -> None:
    fabric, table = description.network(), CsvTable.of(read_text_file(path))
    named = _VTRAIN_NAME.fullmatch(table.name)
    if named is None:
        found = f"{table.name!r:.60}"
        raise DataError(f"{path}: is not vTrain's: name is {found}, expected AR_GPU8.csv or similar")
    if table.columns != _VTRAIN_HEADER:
        found, expected = f"{list(table.columns)!r:.80}", list(_VTRAIN_HEADER)
        raise DataError(f"{path}: is not vTrain's: columns are {found}, expected {expected}")
    names = (*_VTRAIN_HEADER[:3], "out-of-place", "its busbw", "in-place", "its in-place busbw")
    rows = parsed.read(table.called(*names), partial(_vtrain_rows, int(named[1])))
    parsed.add_run("import vtrain", table, description, rows, fabric=fabric)


def _vtrain_rows(processes: int, cells: Cells) -> Iterator[TimedRow]:
    size, count, type_name = cells.whole("size(B)"), cells.whole("count"), cells.text("type")
    dtype = _VTRAIN_TYPES.get(type_name)
    if dtype is None or count * ELEMENT_BYTES[dtype] != size:
        raise Malformed(f"size(B) is {size}, which differs from count {count} of {type_name!r:.20}")
    for place, its_bandwidth in (("out-of-place", "its busbw"), ("in-place", "its in-place busbw")):
        time_us, bandwidth = positive(cells.text(place), "time(ns)") / 1e3, cells.positive(its_bandwidth)
        implied = 2 * (processes - 1) / processes * size / time_us / 1e3
        if abs(implied / bandwidth - 1) > _LARGEST_DIFFERENCE:
            raise Malformed(f"time(ns): {time_us * 1e3:g} is {implied:.4g} GB/s, expected {bandwidth:g}")
        yield TimedRow(
            line=cells.line,
            operator="all_reduce",
            dtype=dtype,
            vector=(count, 1, processes),
            time_us=time_us,
            statistic="mean of several",
            variant=place,
        )


def _vidur(path: Path, description: Description, parsed: Parsed) -> None:
    fabric, table = description.network(), CsvTable.of(read_text_file(path))
    table.require(("num_workers", "devices_per_node", "size", "collective"), "Vidur's table of a collective")
    rows = parsed.read(table, _vidur_rows)
    parsed.add_run("import vidur", table, description, rows, fabric=fabric)


def _vidur_rows(cells: Cells) -> Iterator[TimedRow]:
    collective = cells.text("collective")
    if collective not in _VIDUR_OPERATORS:
        expected = " or ".join(_VIDUR_OPERATORS)
        raise Malformed(f"collective: found {collective!r:.40}, expected {expected}")
    if cells.whole("num_workers") != cells.whole("devices_per_node"):
        raise LeftOut("between nodes, whose fabric is unknown")
    entries, rest = divmod(cells.whole("size"), ELEMENT_BYTES[_VIDUR_DTYPE])
    if rest:
        raise Malformed(f"size: {cells.whole('size')} bytes are no whole number of {_VIDUR_DTYPE} elements")
    yield TimedRow(
        line=cells.line,
        operator=_VIDUR_OPERATORS[collective],
        dtype=_VIDUR_DTYPE,
        vector=(entries, 1, cells.whole("num_workers")),
        time_us=cells.positive(f"time_stats.{collective}.median") * 1e3,
        statistic="median of several",
    )


read_vtrain = partial(read_files, _vtrain, "")
"""All-reduces of vTrain, trace/NODE/AR_GPU*.csv."""
read_vidur = partial(read_files, _vidur, "")
"""Collectives of Vidur, data/profiling/network/NODE/*.csv; only rows within one node."""
