"""Compares collectives that a described fabric predicts with held-out measurements."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.errors import DataError, shown_path
from kernelcast.runtime.hardware.collectives import Setting, collective, collective_us, whole_bytes
from kernelcast.runtime.hardware.correction import MeasuredRows, corrected, rows_by_layout
from kernelcast.runtime.hardware.devices import ELEMENT_BYTES
from kernelcast.runtime.hardware.fabric import Fabric, fabric_named
from kernelcast.runtime.json_text import values_of
from kernelcast.store.importers import (
    Description,
    Parsed,
    read_aiconfigurator,
    read_nccl_tests,
    read_vidur,
    read_vtrain,
)

Row = tuple[int, int, float, float]
"""Nodes, devices per node, bytes that one process puts in, time in µs."""

NCCL_LAYOUTS = ("N1_G8", "N10_G1", "N10_G8")
_A100 = {
    "described": Description(hardware={"device_name": "NVIDIA A100-SXM4-80GB"}, fabric={"gpus_per_node": 8})
}
A100_SOURCES: Mapping[str, tuple[str, Callable[..., Parsed], Mapping[str, Any]]] = {
    "vtrain": ("vtrain/a100/AR_GPU*.csv", read_vtrain, _A100),
    "vidur": ("vidur/a100_dgx/all_reduce.csv", read_vidur, _A100),
    "aiconfigurator": ("aiconfigurator/a100_sxm/comm/nccl/*/nccl_perf.parquet", read_aiconfigurator, {}),
}
"""Files in the folder of published rows, their reader, and what they do not state."""


def a100_all_reduces(data: Path) -> Mapping[str, tuple[Row, ...]]:
    """All-reduces inside of A100 nodes, by source; DataError without a file, UsageError without pyarrow."""
    found = {}
    for source, (pattern, read, described) in A100_SOURCES.items():
        files = sorted(data.glob(pattern))
        if not files:
            raise DataError(f"{shown_path(data)}: no {pattern} in it, expected published rows of collectives")
        found[source] = tuple(_rows(read(files, **described), "all_reduce"))
    return found


def h100_cluster(data: Path, operators: Iterable[str]) -> Mapping[str, tuple[Row, ...]]:
    """Rows of the H100 cluster with 1 × 8, 10 × 1 and 10 × 8, by operator, in place and out of place."""
    logs = [data / "nccl-tests" / f"nccl_{layout}.log" for layout in NCCL_LAYOUTS]
    parsed = read_nccl_tests(logs)
    return {name: tuple(_rows(parsed, name)) for name in operators}


def _rows(parsed: Parsed, operator: str) -> Iterable[Row]:
    for batch in parsed.runs:
        for sample in batch.samples:
            if sample.operator == operator and sample.time_us is not None:
                entries, nodes, gpus = sample.vector
                yield nodes, gpus, float(entries * ELEMENT_BYTES[sample.dtype]), sample.time_us


FORMAT = "kernelcast.fabric_validation/1"
OPERATORS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
A100_FABRIC, H100_FABRIC = "a100-nvswitch", "h100-3200g"
MOST_DESCRIBED, MOST_EXTENDED, MOST_ACROSS = 0.15, 0.10, 0.20
"""Largest median errors that are accepted, of the three checks in the order of `FabricValidation`."""
_MIB = 2**20
_LARGE_BYTES = 32 * _MIB
_ACROSS_BYTES = 256 * _MIB
_ALMOST = 0.999
"""Sizes of gathers are cut to whole shards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """All-reduces of one source above 32 MiB, predicted from a description fitted on the other sources alone."""

    source: str
    efficiency: float
    median_error: float
    median_signed_error: float
    by_devices: Mapping[int, float]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended:
    """All-reduces of 8 devices above 32 MiB, predicted from the source's rows of 2 and 4."""

    source: str
    median_error: float
    median_signed_error: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One size of a collective on 10 × 8; bytes of the whole message, times in µs.

    `slower_level_us` is the plain maximum of the measured 1 × 8 and the rails of the measured 10 × 1.
    """

    message_bytes: int
    measured_us: float
    predicted_us: float
    slower_level_us: float

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        return self.predicted_us / self.measured_us - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Across:
    """A collective on 10 nodes of 8, predicted from rows of 1 × 8 and 10 × 1."""

    operator: str
    sizes: tuple[Size, ...]

    @property
    def median_error(self) -> float:
        """Median of absolute errors of sizes from 256 MiB."""
        return median(abs(size.error) for size in self.sizes if size.message_bytes >= _ALMOST * _ACROSS_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricValidation:
    """The three checks."""

    described: tuple[Described, ...]
    extended: tuple[Extended, ...]
    across: tuple[Across, ...]

    @property
    def holds(self) -> bool:
        """Whether every median is within its limit."""
        found = (self.described, MOST_DESCRIBED), (self.extended, MOST_EXTENDED), (self.across, MOST_ACROSS)
        return all(one.median_error <= most for checked, most in found for one in checked)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; errors are fractions."""
        return {
            "format": FORMAT,
            "limits": {"described": MOST_DESCRIBED, "extended": MOST_EXTENDED, "across": MOST_ACROSS},
            "holds": self.holds,
            "described": [
                asdict(one) | {"by_devices": {str(key): value for key, value in one.by_devices.items()}}
                for one in self.described
            ],
            "extended": [asdict(one) for one in self.extended],
            "across": [
                values_of(one, "operator", "median_error")
                | {"sizes": [asdict(size) | {"error": size.error} for size in one.sizes]}
                for one in self.across
            ],
        }


def validate_fabrics(data: Path) -> FabricValidation:
    """Run the three checks on published rows in folder `data` (docs/fabrics.md); errors as `a100_all_reduces`."""
    a100 = {
        source: tuple(row for row in rows if row[2] > _LARGE_BYTES)
        for source, rows in a100_all_reduces(data).items()
    }
    cluster = h100_cluster(data, OPERATORS)
    return FabricValidation(
        described=tuple(_described(source, a100) for source in a100),
        extended=tuple(_extended(source, rows) for source, rows in a100.items()),
        across=tuple(_across(operator, rows) for operator, rows in cluster.items()),
    )


def _described(source: str, by_source: Mapping[str, Sequence[Row]]) -> Described:
    fabric = fitted_on([rows for other, rows in by_source.items() if other != source])
    errors = {
        rows.gpus_per_node: collective_us("all_reduce", rows.message_bytes, _setting(fabric, rows))
        / rows.time_us
        - 1
        for rows in rows_by_layout(by_source[source])
    }
    together = np.concatenate(list(errors.values()))
    assert fabric.inside is not None
    return Described(
        source=source,
        efficiency=fabric.inside.efficiency,
        median_error=_median(np.abs(together)),
        median_signed_error=_median(together),
        by_devices={devices: _median(np.abs(one)) for devices, one in errors.items()},
        rows=len(together),
    )


def fitted_on(sources: Sequence[Sequence[Row]]) -> Fabric:
    """The A100 node with latency, start-up and efficiency of `sources`, equally weighted (geometric means)."""
    fabric = fabric_named(A100_FABRIC)
    assert fabric.inside is not None
    scales = [corrected(fabric, "all_reduce", rows_by_layout(rows)).correction.inside for rows in sources]
    latency = math.exp(sum(math.log(scale.latency) for scale in scales) / len(scales))
    per_byte = math.exp(sum(math.log(scale.per_byte) for scale in scales) / len(scales))
    usual = min(1.0, fabric.inside.efficiency / per_byte)
    inside = replace(
        fabric.inside,
        latency_us=fabric.inside.latency_us * latency,
        startup_us=fabric.inside.startup_us * latency,
        efficiency=usual,
        efficiency_range=(usual, usual),
    )
    return replace(fabric, inside=inside)


def _extended(source: str, rows: Sequence[Row]) -> Extended:
    fabric = fabric_named(A100_FABRIC)
    found = corrected(fabric, "all_reduce", rows_by_layout(row for row in rows if row[1] in (2, 4)))
    [eight] = rows_by_layout(row for row in rows if row[1] == 8)
    errors = found.time_us(eight.message_bytes, _setting(fabric, eight)) / eight.time_us - 1
    return Extended(
        source=source,
        median_error=_median(np.abs(errors)),
        median_signed_error=_median(errors),
        rows=len(errors),
    )


def _across(operator: str, rows: Sequence[Row]) -> Across:
    fabric = fabric_named(H100_FABRIC)
    by_layout = {one.layout: one for one in rows_by_layout(rows)}
    wanted = by_layout.pop((10, 8))
    known = list(by_layout.values())
    predicted_us = corrected(fabric, operator, known).time_us(wanted.message_bytes, _setting(fabric, wanted))
    shards = whole_bytes(operator, 1.0, 80)
    levels_us = np.maximum(*(_level_us(operator, one, wanted.message_bytes * shards) for one in known))
    columns = (wanted.message_bytes * shards, wanted.time_us, predicted_us, levels_us)
    return Across(
        operator=operator,
        sizes=tuple(
            Size(
                message_bytes=round(size), measured_us=measured, predicted_us=predicted, slower_level_us=level
            )
            for size, measured, predicted, level in zip(*(map(float, one) for one in columns), strict=True)
        ),
    )


def _level_us(operator: str, rows: MeasuredRows, message_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
    """A measured level at whole messages of `message_bytes`; a ring over one process per node is one of 8 rails."""
    processes = rows.nodes * rows.gpus_per_node
    known = whole_bytes(operator, rows.message_bytes, processes)
    rails = 8 if rows.nodes > 1 and not collective(operator).is_pairwise else 1
    logs = np.interp(np.log(message_bytes), np.log(known), np.log(rows.time_us / rails))
    found: NDArray[np.float64] = np.exp(logs)
    return found


def _setting(fabric: Fabric, rows: MeasuredRows) -> Setting:
    return Setting(fabric=fabric, nodes=rows.nodes, gpus_per_node=rows.gpus_per_node)


def _median(values: NDArray[np.float64]) -> float:
    return float(np.median(values))
