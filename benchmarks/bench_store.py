"""How fast the store is: inserting kernels, merging two large databases, and the views. Prints medians.

Each part runs in a process of its own, so that its peak memory is its own.
"""

import tempfile
from collections import deque
from pathlib import Path

from kernelcast.benchmarks.harness import Bench, script, seconds_of
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, SoftwareFingerprint
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, Kernel, Repetition, Run, Sample, merge_databases

REPETITIONS, KERNELS = 10, 20  # of a sample, of a repetition: what a transformer's operators have
SAMPLES_AT_ONCE = 50  # stored by one call, as the collector does
VIEWS = (
    "operator_time", "coverage", "slowest_kernel", "failure", "operator_noise", "point_time", "software_history",
    "hardware_side_by_side",
)  # fmt: skip

GPU = ComputeFingerprint(kind="cuda", device_name="Example GPU", memory_gib=80)
SOFTWARE = SoftwareFingerprint(torch="2.13.0", driver="570")


def make_run(plan: str) -> Run:
    """A run on the example GPU."""
    return Run(
        started_at="2026-01-31T08:15:00Z",
        kernelcast_version="0.1.0",
        command="benchmark",
        plan=plan,
        compute_id=GPU.digest,
        software_id=SOFTWARE.digest,
    )


def make_samples(run: Run, kernels: int) -> list[Sample]:
    """Samples with this number of kernels altogether."""
    return [
        Sample.from_repetitions(
            run_id=run.id,
            operator="gemm",
            role="qkv",
            direction=Direction.FORWARD,
            dtype="float32",
            vector=(rows, 512, 1536),
            repetitions=[
                Repetition(
                    index=index,
                    time_us=100.0 + index + rows / 1000,
                    start_us=200.0 * index,
                    kernels=tuple(
                        Kernel(
                            name=f"gemm_{rows % 50}_{k}", start_us=5.0 * k, duration_us=4.5 + k / 8, stream=7
                        )
                        for k in range(KERNELS)
                    ),
                )
                for index in range(REPETITIONS)
            ],
            measured_at="2026-01-31T08:16:00Z",
        )
        for rows in range(1, kernels // (REPETITIONS * KERNELS) + 1)
    ]


def insert(path: str, plan: str, kernels: int) -> dict[str, float]:
    """Stores samples that are in memory already."""
    Path(path).unlink(missing_ok=True)
    run = make_run(plan)
    samples = make_samples(run, kernels)
    with Database.open(Path(path), create=True) as database:
        database.add_run(run, GPU, None, SOFTWARE)

        def add() -> None:
            for first in range(0, len(samples), SAMPLES_AT_ONCE):
                database.add_samples(samples[first : first + SAMPLES_AT_ONCE])

        return {"seconds": seconds_of(add)}


def merge(folder: str) -> dict[str, float]:
    target = Path(folder, "merged.db")
    target.unlink(missing_ok=True)
    sources = [Path(folder, "a.db"), Path(folder, "b.db")]
    return {"seconds": seconds_of(lambda: merge_databases(sources, target))}


def view(path: str, name: str) -> dict[str, float]:
    with Database.open(Path(path), read_only=True) as database:
        rows = database.connection.execute(f"SELECT * FROM {name}")
        return {"seconds": seconds_of(lambda: deque(rows, maxlen=0))}


def measure_inserts(bench: Bench, folder: str, kernels: int, repeat: int) -> list[float]:
    plans = {"a": "one", "b": "other"}
    return [
        bench.part("insert", repeat=repeat, path=f"{folder}/{name}.db", plan=plan, kernels=kernels)["seconds"]
        for name, plan in plans.items()
    ]


@script(
    repeat=3,
    options={"--kernels": {"type": int, "default": 10**6, "help": "kernel rows of each database"}},
    insert=insert,
    merge=merge,
    view=view,
)
def main(bench: Bench) -> None:
    kernels = bench.given.kernels

    def show(what: str, found: dict[str, float]) -> None:
        print(f"{what:24} {found['seconds']:12.3f} s   peak memory {found['peak_mb']:,.0f} MB", flush=True)

    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as smaller:
        for name, seconds in zip("ab", measure_inserts(bench, folder, kernels, bench.repeat), strict=True):
            print(f"{'insert ' + name:24} {kernels / seconds:12,.0f} kernel rows/s   {seconds:7.2f} s")
        size_mb = Path(folder, "a.db").stat().st_size / 1e6
        print(
            f"{'size of a database':24} {size_mb:12,.0f} MB, {1e6 * size_mb / kernels:.0f} bytes per kernel"
        )
        show("merge a and b", bench.part("merge", folder=folder))
        measure_inserts(bench, smaller, kernels // 4, 1)
        show("merge, a quarter of it", bench.part("merge", folder=smaller))
        for name in VIEWS:
            show(f"view {name}", bench.part("view", path=f"{folder}/a.db", name=name))
