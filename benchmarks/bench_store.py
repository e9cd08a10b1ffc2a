"""How fast the store is: inserting kernels, merging two large databases, and the views. Prints medians.

    python benchmarks/bench_store.py [--kernels 1000000] [--repeat 3]

Each part runs in a process of its own, so that its peak memory is its own.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

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
    """Samples with as many kernels altogether."""
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


def insert(path: Path, plan: str, kernels: int) -> float:
    """Seconds to store samples that are in memory already."""
    path.unlink(missing_ok=True)
    run = make_run(plan)
    samples = make_samples(run, kernels)
    with Database.open(path, create=True) as database:
        database.add_run(run, GPU, None, SOFTWARE)
        begin = time.perf_counter()
        for first in range(0, len(samples), SAMPLES_AT_ONCE):
            database.add_samples(samples[first : first + SAMPLES_AT_ONCE])
        return time.perf_counter() - begin


def merge(folder: Path, kernels: int) -> float:
    """Seconds to merge a.db and b.db into a new database."""
    target = folder / "merged.db"
    target.unlink(missing_ok=True)
    begin = time.perf_counter()
    merge_databases([folder / "a.db", folder / "b.db"], target)
    return time.perf_counter() - begin


def view(path: Path, name: str) -> float:
    """Seconds until all rows of a view are read."""
    with Database.open(path, read_only=True) as database:
        begin = time.perf_counter()
        for _ in database.connection.execute(f"SELECT * FROM {name}"):
            pass
        return time.perf_counter() - begin


def measure(part: str, folder: Path, kernels: int) -> None:
    """Run one part in this process and print its seconds and the peak memory (MB)."""
    parts: dict[str, Callable[[], float]] = {
        "insert a": lambda: insert(folder / "a.db", "one", kernels),
        "insert b": lambda: insert(folder / "b.db", "other", kernels),
        "merge": lambda: merge(folder, kernels),
        **{name: (lambda name=name: view(folder / "a.db", name)) for name in VIEWS},  # type: ignore[misc]
    }
    seconds = parts[part]()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([seconds, peak_mb]))


def in_a_process(part: str, folder: Path, kernels: int, repeat: int) -> tuple[float, float]:
    """Median seconds and largest peak memory (MB) of a part."""
    found = []
    for _ in range(repeat):
        arguments = ["--part", part, "--folder", str(folder), "--kernels", str(kernels)]
        done = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, check=True)
        found.append(json.loads(done.stdout))
    return statistics.median(seconds for seconds, _ in found), max(peak for _, peak in found)


def main() -> None:
    """Measure everything, or one part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=1_000_000, help="kernel rows of each database")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        measure(given.part, given.folder, given.kernels)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("insert a", "insert b"):
            seconds, _ = in_a_process(part, folder, given.kernels, given.repeat)
            print(f"{part:24} {given.kernels / seconds:12,.0f} kernel rows/s   {seconds:7.2f} s")
        size_mb = (folder / "a.db").stat().st_size / 1e6
        print(
            f"{'size of a database':24} {size_mb:12,.0f} MB, {1e6 * size_mb / given.kernels:.0f} bytes per kernel"
        )
        seconds, peak_mb = in_a_process("merge", folder, given.kernels, given.repeat)
        print(f"{'merge a and b':24} {seconds:12.2f} s   peak memory {peak_mb:,.0f} MB")
        with tempfile.TemporaryDirectory() as other:
            quarter = given.kernels // 4
            for part in ("insert a", "insert b"):
                in_a_process(part, Path(other), quarter, 1)
            seconds, peak_mb = in_a_process("merge", Path(other), quarter, given.repeat)
            print(f"{'merge, a quarter of it':24} {seconds:12.2f} s   peak memory {peak_mb:,.0f} MB")
        for part in VIEWS:
            seconds, peak_mb = in_a_process(part, folder, given.kernels, given.repeat)
            print(f"{'view ' + part:24} {seconds:12.3f} s   peak memory {peak_mb:,.0f} MB")


if __name__ == "__main__":
    main()
