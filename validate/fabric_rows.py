"""Published rows of collectives that fabrics are validated with, each as (nodes, devices, bytes, time in µs)."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from kernelcast.runtime.errors import DataError, shown_path
from kernelcast.runtime.hardware.element_types import ELEMENT_BYTES
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
    """All-reduces inside of A100 nodes, by source.

    Raises:
        DataError: a file is missing or is not what it should be.
        UsageError: pyarrow is not installed.
    """
    found = {}
    for source, (pattern, read, described) in A100_SOURCES.items():
        files = sorted(data.glob(pattern))
        if not files:
            raise DataError(f"{shown_path(data)}: no {pattern} in it, expected published rows of collectives")
        found[source] = tuple(_rows(read(files, **described), "all_reduce"))
    return found


def h100_cluster(data: Path, operators: Iterable[str]) -> Mapping[str, tuple[Row, ...]]:
    """Rows of the H100 cluster with 1 × 8, 10 × 1 and 10 × 8, by operator, in place and out of place.

    Raises:
        DataError: a file is missing or is not what it should be.
    """
    logs = [data / "nccl-tests" / f"nccl_{layout}.log" for layout in NCCL_LAYOUTS]
    parsed = read_nccl_tests(logs)
    return {name: tuple(_rows(parsed, name)) for name in operators}


def _rows(parsed: Parsed, operator: str) -> Iterable[Row]:
    for batch in parsed.runs:
        for sample in batch.samples:
            if sample.operator == operator and sample.time_us is not None:
                entries, nodes, gpus = sample.vector
                yield nodes, gpus, float(entries * ELEMENT_BYTES[sample.dtype]), sample.time_us
