"""What the store's tests measure on: a made-up CPU, and samples with kernels."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.operators import Direction
from kernelcast.store import (
    Database,
    EventKind,
    IngestedTrace,
    Kernel,
    MeasuredRun,
    MeasuredStep,
    Repetition,
    Run,
    Sample,
    Timeline,
    TracedEvent,
    TracedStep,
    UnrecognisedKernels,
)

SampleMaker = Callable[..., Sample]


@pytest.fixture
def compute() -> ComputeFingerprint:
    return ComputeFingerprint(
        kind="cpu", device_name="Example CPU", cores=2, threads=1, caches=("L2 1 MiB",), virtualised=True
    )


@pytest.fixture
def fabric() -> FabricFingerprint:
    return FabricFingerprint(backend="gloo", gpus_per_node=2, links=("shared memory",))


@pytest.fixture
def software() -> SoftwareFingerprint:
    return SoftwareFingerprint(torch="2.13.0", environment=("OMP_NUM_THREADS=1",))


@pytest.fixture
def run(compute: ComputeFingerprint, fabric: FabricFingerprint, software: SoftwareFingerprint) -> Run:
    return Run(
        started_at="2026-01-31T08:15:00Z",
        kernelcast_version="0.1.0",
        code_digest="c0de",
        command="collect compute",
        plan="quick",
        compute_id=compute.digest,
        fabric_id=fabric.digest,
        software_id=software.digest,
        conditions={"processes_per_node": 1},
        site="Example site",
        note="first try",
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bench.db"


@pytest.fixture
def database(
    path: Path,
    run: Run,
    compute: ComputeFingerprint,
    fabric: FabricFingerprint,
    software: SoftwareFingerprint,
) -> Iterator[Database]:
    """An open database that holds `run` and nothing measured."""
    with Database.open(path, create=True) as opened:
        opened.add_run(run, compute, fabric, software)
        yield opened


@pytest.fixture
def make_sample(run: Run) -> SampleMaker:
    """Make a sample of `run`: `make_sample(rows=64, time_us=10.0, kernels=3)`."""

    def make(
        *,
        rows: int = 64,
        time_us: float = 10.0,
        kernels: int = 2,
        operator: str = "gemm",
        direction: Direction = Direction.FORWARD,
        run_id: str | None = None,
    ) -> Sample:
        repetitions = [
            Repetition(
                index=index,
                time_us=time_us + index,
                start_us=100.0 * index,
                kernels=tuple(
                    Kernel(name=f"gemm_{k}", start_us=float(k), duration_us=0.5 + k, stream=7)
                    for k in range(kernels)
                ),
            )
            for index in range(10)
        ]
        return Sample.from_repetitions(
            run_id=run_id or run.id,
            operator=operator,
            direction=direction,
            dtype="float32",
            vector=(rows, 512, 1536),
            repetitions=repetitions,
            reference_us=41.5,
            measured_at="2026-01-31T08:16:00Z",
        )

    return make


@pytest.fixture
def step(run: Run) -> MeasuredStep:
    return MeasuredStep.from_repetitions(
        repetitions_s=[0.7, 0.6, 0.65, 0.9],
        run_id=run.id,
        model={"name": "small-gpt", "d": 512},
        pp=2,
        tp=1,
        dp=1,
        micro_batch=4,
        micro_batches=8,
        schedule="1F1B",
        recomputation=False,
        dtype="float32",
        components_s={"layer_forward": 0.02},
        measured_at="2026-01-31T09:00:00Z",
    )


def timeline_of(trace: IngestedTrace) -> Timeline:
    """Two steps: a product that hides a part of an all-reduce, then a copy whose launch was late."""
    product = EventKind(
        name="gemm", category="kernel", class_="compute", host_operator="aten::mm", shapes="[[4,8],[8,3]]",
        direction="forward", dtype="bfloat16", reason="no operator for it", batch=1, m=4, k=8, n=3,
    )  # fmt: skip
    reduce = EventKind(
        name="nccl", category="kernel", class_="communication", collective="allreduce", group_ranks="[0, 1]",
        group_size=2, message_bytes=4096, dtype="float32",
    )  # fmt: skip
    copy = EventKind(name="Memcpy HtoD", category="gpu_memcpy", class_="memory")
    return Timeline(
        trace.id,
        (TracedStep("ProfilerStep#1", 0, 50_000), TracedStep("ProfilerStep#2", 50_000, 40_000)),
        (
            TracedEvent(product, 10_000, 20_000, 20_000, 0, 0, 0, 7, 0, 1_000, 0, 11, "forward"),
            TracedEvent(reduce, 20_000, 30_000, 20_000, 0, None, 0, 20, 0),
            TracedEvent(copy, 60_000, 5_000, 5_000, 10_000, 8_000, 0, 7, 1, 58_000, 1, 12),
        ),
    )


@pytest.fixture
def add_trace(
    database: Database,
    run: Run,
    compute: ComputeFingerprint,
    fabric: FabricFingerprint,
    software: SoftwareFingerprint,
) -> Callable[..., IngestedTrace]:
    """Add a trace of `run` with kernels that nothing recognised: `add_trace(rank=1)`."""

    def add(rank: int = 0) -> IngestedTrace:
        trace = IngestedTrace(
            run_id=run.id,
            file_digest=f"{rank:064x}",
            rank=rank,
            world_size=2,
            backend="nccl",
            process_groups=({"name": "0", "size": 2, "ranks": [0, 1]},),
            span_us=90.0,
            event_count=5,
            kernel_count=4,
            kernel_us=50.0,
            attributed_count=3,
            attributed_us=40.0,
            recognised_count=1,
            recognised_us=10.0,
            measured_at="2026-01-31T08:16:00Z",
        )
        left = UnrecognisedKernels(
            trace_id=trace.id,
            name="vectorized_elementwise_kernel",
            category="kernel",
            stream=7,
            host_operator="aten::add",
            shapes="[[4,8],[4,8]]",
            reason="no operator for it",
            kernel_count=3,
            total_us=40.0,
        )
        database.add_runs(
            [
                MeasuredRun(
                    run=run,
                    compute=compute,
                    fabric=fabric,
                    software=software,
                    samples=[],
                    traces=[(trace, [left])],
                    timelines=[timeline_of(trace)],
                )
            ]
        )
        return trace

    return add


@pytest.fixture
def other(
    tmp_path: Path,
    run: Run,
    compute: ComputeFingerprint,
    fabric: FabricFingerprint,
    software: SoftwareFingerprint,
) -> Path:
    """A second database, with another run."""
    path = tmp_path / "other.db"
    with Database.open(path, create=True) as database:
        database.add_run(replace(run, plan="thorough"), compute, fabric, software)
    return path
