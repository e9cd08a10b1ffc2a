"""How fast a large trace is ingested, in how much memory, into how large a database.

    python benchmarks/bench_traces.py [--kernels 1000000] [--folder /tmp] [--read-only]

Writes a synthetic trace of a training run (steps of layers of products, norms, copies and all-reduces; three calls of
the host, two of autograd's nodes and a launch per kernel) and ingests it in a process of its own. Printed are seconds
of the processor, MB/s of JSON, the peak of the process's memory, and the database's bytes per kernel, indexes and
samples included.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelcast.benchmarks.harness import Bench

_KERNELS_OF_A_LAYER = 20
_LAYERS = 48


def events(kernels: int) -> Iterator[dict[str, Any]]:
    """Events of a run with this number of kernels, in order of launch; times in µs."""
    host_us, device_us = 1000.0, 5000.0
    for number in range(kernels):
        place = number % _KERNELS_OF_A_LAYER
        step, in_step = divmod(number, _KERNELS_OF_A_LAYER * _LAYERS)
        if in_step == 0:
            yield _event(
                "user_annotation", f"ProfilerStep#{step}", host_us, 19200.0, 1, {"External id": -step}
            )
        is_backward, is_product, is_collective = place >= 8, place % 3 == 0, place == 19
        name = "aten::mm" if is_product else "aten::add_"
        width = 4096 * (1 + place % 4)
        dims = [[4096, 4096], [4096, width]] if is_product else [[4, 1024, 4096], [4, 1024, 4096], []]
        numbers = {"External id": number, "Record function id": 0, "Sequence number": number - is_backward}
        arguments = {
            **numbers, "Fwd thread id": int(is_backward), "Input Dims": dims, "Input Strides": dims,
            "Input type": ["c10::BFloat16", "c10::BFloat16"], "Concrete Inputs": ["", ""], "Ev Idx": number,
        }  # fmt: skip
        thread = 2 if is_backward else 1
        if is_backward:
            node = f"autograd::engine::evaluate_function: {'Mm' if is_product else 'Add'}Backward0"
            yield _event("cpu_op", node, host_us, 18.0, thread, numbers)
        yield _event("cpu_op", name, host_us + 1, 15.0, thread, arguments)
        yield _event("cpu_op", "aten::empty", host_us + 2, 2.0, thread, {"External id": -1, "Ev Idx": number})
        launched = {"External id": number, "cbid": 211, "correlation": number}
        yield _event("cuda_runtime", "cudaLaunchKernel", host_us + 5, 4.5, thread, launched)
        duration_us = 100.0 + number % 7 * 0.131 if is_product else 12.0 + number % 5 * 0.032
        kernel = f"sm90_xmma_gemm_bf16_{width}" if is_product else f"vectorized_elementwise_kernel_{place}"
        details: dict[str, Any] = {
            **launched, "queued": 0, "device": 0, "context": 1, "stream": 20 if is_collective else 7,
            "registers per thread": 168, "shared memory": 213_000, "blocks per SM": 1.0, "warps per SM": 12.0,
            "grid": [132, 1, 1], "block": [384, 1, 1], "est. achieved occupancy %": 18,
        }  # fmt: skip
        if is_collective:
            kernel = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
            details |= {
                "Collective name": "allreduce", "In msg nelems": 2**24, "Out msg nelems": 2**24, "Group size": 8,
                "dtype": "BFloat16", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
            }  # fmt: skip
        device_us = max(device_us, host_us + 12.0)
        yield _event("kernel", kernel, device_us, duration_us, 20 if is_collective else 7, details, pid=0)
        device_us += 20.0 if is_collective else duration_us + 0.9
        host_us += 20.0


def _event(
    category: str,
    name: str,
    start_us: float,
    duration_us: float,
    thread: int,
    args: dict[str, Any],
    pid: int = 4711,
) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": thread, "ts": round(start_us, 3),
            "dur": duration_us, "args": args}  # fmt: skip


def write(path: Path, kernels: int) -> None:
    """Write the trace as the profiler does, an event per few lines."""
    head = {
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": n, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_018_279_936, "numSms": 132}
            for n in range(8)
        ],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},
        "baseTimeNanoseconds": 1_760_000_000_000_000_000,
    }
    with path.open("w") as file:
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        for number, event in enumerate(events(kernels)):
            file.write((",\n" if number else "") + json.dumps(event))
        file.write('\n], "traceName": "synthetic.json"}\n')


def read(trace: str) -> dict[str, float]:
    """Processor time of reading the trace alone."""
    from kernelcast.collector.traces.kineto import read_trace

    start = time.process_time()
    read_trace(Path(trace))
    return {"seconds": time.process_time() - start}


def ingest(trace: str, database: str) -> dict[str, float]:
    """Processor time of ingesting it."""
    from kernelcast.collector.ingest import ingest_traces

    start = time.process_time()
    ingest_traces([Path(trace)], Path(database))
    return {"seconds": time.process_time() - start}


def main() -> None:
    """Write, read and ingest the trace; print figures."""
    bench = Bench(__file__, __doc__, read=read, ingest=ingest)
    bench.parser.add_argument("--kernels", type=int, default=1_000_000)
    bench.parser.add_argument("--folder", type=Path, default=Path("/tmp"))
    bench.parser.add_argument("--read-only", action="store_true", help="do not ingest")
    given = bench.arguments()
    trace, database = given.folder / "bench_traces.json", given.folder / "bench_traces.db"
    database.unlink(missing_ok=True)
    write(trace, given.kernels)
    size_mb = trace.stat().st_size / 1e6
    print(f"{given.kernels:,} kernels, {size_mb:,.0f} MB of JSON")
    parts = {"read": {"trace": trace}, "ingest": {"trace": trace, "database": database}}
    for name, arguments in list(parts.items())[: 1 if given.read_only else 2]:
        found = bench.part(name, **arguments)
        seconds, peak_mb = found["seconds"], found["peak_mb"] * 1.048576
        print(f"{name}: {seconds:.1f} s, {size_mb / seconds:.0f} MB/s, peak {peak_mb:,.0f} MB", flush=True)
    if database.exists():
        size = database.stat().st_size
        print(f"database: {size / 1e6:,.1f} MB, {size / given.kernels:.0f} bytes per kernel")
    trace.unlink()


if __name__ == "__main__":
    main()
