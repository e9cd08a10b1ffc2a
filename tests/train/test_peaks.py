"""The peak of a CPU: the highest rate of its matrix products."""

from dataclasses import replace

import pytest

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, SoftwareFingerprint
from kernelcast.runtime.operators import Direction
from kernelcast.train.dataset import Row, tables
from kernelcast.train.scope import Scope, measured_peaks

CPU = ComputeFingerprint(kind="cpu", device_name="Example CPU", cores=4, threads=2)
SCOPE = Scope(
    dtype="bfloat16", compute=(CPU,), fabric=(), software=(SoftwareFingerprint(torch="2"),), samples=()
)


def row(
    operator: str, direction: Direction, vector: tuple[int, ...], time_us: float, processes: int = 1
) -> Row:
    return Row(
        operator=operator, direction=direction, vector=vector, time_us=time_us, processes_per_node=processes
    )


def test_the_highest_rate_of_any_direction_and_level() -> None:
    found = tables(
        [
            row("gemm", Direction.FORWARD, (10, 10, 10), 2.0),  # 1 GFLOP/s
            row("gemm", Direction.WEIGHT_GRADIENT, (10, 10, 100), 5.0),  # 4 GFLOP/s
            row("gemm", Direction.FORWARD, (10, 10, 100), 10.0, processes=2),
            row("gelu", Direction.FORWARD, (10, 10, 100), 0.001),
        ],
        statistic="quiet",
    )
    [peak] = measured_peaks(SCOPE, found)
    assert peak.flops_per_s == pytest.approx(4e9)
    assert (peak.device, peak.dtype) == (CPU.description, "bfloat16")
    assert peak.source == "highest rate among 3 measured matrix products"
    gpu = replace(SCOPE, compute=(ComputeFingerprint(kind="cuda", device_name="Example GPU"),))
    assert measured_peaks(gpu, found) == ()
    assert measured_peaks(SCOPE, [table for table in found if table.operator == "gelu"]) == ()
