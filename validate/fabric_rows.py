"""Published rows of collectives that fabrics are validated with, each as (nodes, devices, bytes, time in µs)."""

from collections.abc import Iterable, Mapping
from pathlib import Path

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

A100_SOURCES = ("vtrain", "vidur", "aiconfigurator")
NCCL_LAYOUTS = ("N1_G8", "N10_G1", "N10_G8")
_A100 = Description(hardware={"device_name": "NVIDIA A100-SXM4-80GB"}, fabric={"gpus_per_node": 8})


def a100_all_reduces(data: Path) -> Mapping[str, tuple[Row, ...]]:
    """All-reduces inside of A100 nodes, by source.

    Raises:
        DataError: a file is missing or is not what it should be.
        UsageError: pyarrow is not installed.
    """
    vtrain = read_vtrain(_files(data / "vtrain" / "a100", "AR_GPU*.csv"), described=_A100)
    vidur = read_vidur([data / "vidur" / "a100_dgx" / "all_reduce.csv"], described=_A100)
    parquet = _files(data / "aiconfigurator" / "a100_sxm" / "comm" / "nccl", "*/nccl_perf.parquet")
    return {
        "vtrain": tuple(_rows(vtrain, "all_reduce")),
        "vidur": tuple(_rows(vidur, "all_reduce")),
        "aiconfigurator": tuple(_rows(read_aiconfigurator(parquet), "all_reduce")),
    }


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


def _files(folder: Path, pattern: str) -> list[Path]:
    found = sorted(folder.glob(pattern))
    if not found:
        raise DataError(f"{shown_path(folder)}: no {pattern} in it, expected published rows of collectives")
    return found
