"""What the training's tests train on: tables of a made-up device that follows a roofline, and databases of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.store import Database, Repetition, Run, Sample
from kernelcast.train.dataset import Table

Vector = tuple[int, ...]
LARGEST = {
    "entries": 2**24,
    "parameters": 2**24,
    "layers": 8,
    "nodes": 4,
    "gpus_per_node": 4,
    "vocabulary": 16384,
}


@pytest.fixture
def workloads() -> Callable[..., list[Vector]]:
    """Distinct workload vectors of an operator, spread evenly over the logarithms: `workloads("gelu", 20)`."""

    def make(operator: str, count: int, *, seed: int = 0) -> list[Vector]:
        generator = np.random.default_rng(seed)
        highs = [LARGEST.get(name, 512) for name in OPERATORS[operator].features]
        found: dict[Vector, None] = {}
        while len(found) < count:
            found[tuple(round(high ** generator.random()) for high in highs)] = None
        return list(found)

    return make


@pytest.fixture
def roofline_us() -> Callable[[str, Direction, Vector], float]:
    """Time in µs on the made-up device: 20 µs a call, 100 GFLOP/s and 10 GB/s, one after the other."""

    def time_us(operator: str, direction: Direction, vector: Vector) -> float:
        op = OPERATORS[operator]
        return 20 + op.flops(direction, vector) / 1e5 + op.moved_bytes(direction, vector, 4) / 1e4

    return time_us


@pytest.fixture
def make_table(
    workloads: Callable[..., list[Vector]], roofline_us: Callable[[str, Direction, Vector], float]
) -> Callable[..., Table]:
    """A table of the made-up device. `law(vector)` gives other times; `noise` is a deviation of their logarithms."""

    def make(
        operator: str = "gemm",
        direction: Direction = Direction.FORWARD,
        count: int = 20,
        *,
        law: Callable[[Vector], float] | None = None,
        noise: float = 0.0,
        seed: int = 0,
    ) -> Table:
        vectors = workloads(operator, count, seed=seed)
        times_us = [law(v) if law else roofline_us(operator, direction, v) for v in vectors]
        factors = np.exp(noise * np.random.default_rng(seed + 1).standard_normal(count))
        return Table(
            operator=operator,
            direction=direction,
            workloads=np.array(vectors, dtype=np.float64),
            times_us=np.array(times_us) * factors,
        )

    return make


@pytest.fixture
def compute() -> ComputeFingerprint:
    return ComputeFingerprint(kind="cpu", device_name="Example CPU", cores=2, threads=1)


@pytest.fixture
def fabric() -> FabricFingerprint:
    return FabricFingerprint(backend="gloo", gpus_per_node=2, links=("shared memory",))


@pytest.fixture
def software() -> SoftwareFingerprint:
    return SoftwareFingerprint(torch="2.13.0")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """An open database, empty."""
    with Database.open(tmp_path / "bench.db", create=True) as opened:
        yield opened


@pytest.fixture
def measure(
    compute: ComputeFingerprint,
    fabric: FabricFingerprint,
    software: SoftwareFingerprint,
    workloads: Callable[..., list[Vector]],
    roofline_us: Callable[[str, Direction, Vector], float],
) -> Callable[..., list[Sample]]:
    """Store samples of the made-up device: `measure(database, "gelu", Direction.FORWARD, 20)`.

    Quiet times are the device's, middle-five times a tenth longer. `times_us` gives vectors and quiet times instead;
    `quiet` false leaves quiet times out, as an import does. `repetitions_us` are kept with every sample.
    """
    given = compute, fabric, software

    def store(
        database: Database,
        operator: str = "gelu",
        direction: Direction = Direction.FORWARD,
        count: int = 12,
        *,
        times_us: Mapping[Vector, float] | None = None,
        seed: int = 0,
        quiet: bool = True,
        repetitions_us: Sequence[float] = (),
        dtype: str = "float32",
        role: str = "",
        variant: str = "",
        conditions: Mapping[str, int] | None = None,
        measured_at: str | None = "2026-01-31T08:16:00Z",
        started_at: str | None = "2026-01-31T08:15:00Z",
        compute: ComputeFingerprint = given[0],
        fabric: FabricFingerprint | None = given[1],
        software: SoftwareFingerprint = given[2],
    ) -> list[Sample]:
        run = Run(
            started_at=started_at,
            kernelcast_version="0.1.0",
            command="collect",
            compute_id=compute.digest,
            fabric_id=fabric.digest if fabric else None,
            software_id=software.digest,
            conditions=conditions or {},
        )
        database.add_run(run, compute, fabric, software)
        if times_us is None:
            vectors = workloads(operator, count, seed=seed)
            times_us = {vector: roofline_us(operator, direction, vector) for vector in vectors}
        samples = [
            Sample(
                run_id=run.id,
                operator=operator,
                role=role,
                direction=direction,
                dtype=dtype,
                vector=vector,
                variant=variant,
                time_us=1.1 * max(time_us, 1.0),
                quiet_us=time_us if quiet else None,
                statistic="middle five of ten",
                repetition_count=len(repetitions_us) or 10,
                measured_at=measured_at,
                repetitions=tuple(Repetition(index=i, time_us=t) for i, t in enumerate(repetitions_us)),
            )
            for vector, time_us in times_us.items()
        ]
        database.add_samples(samples)
        return samples

    return store
