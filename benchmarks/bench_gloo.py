"""How long two processes with one core each take for small all-reduces over gloo, with and without a calm loop.

Both ways take turns in one run, in new processes. A repetition lasts until the later process has finished. What is
calm: collector/measuring/gloo_threads.py.
"""

import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as tp

from kernelcast.benchmarks.harness import Bench, script
from kernelcast.collector.measuring.core_binding import bind, own_cores
from kernelcast.collector.measuring.gloo_threads import calm_gloo
from kernelcast.docs.markdown import table

ENTRIES = (256, 65_536, 1_048_576)
WARM_UP = 20
STALL_US = 1000.0  # above the 10th percentile


def exchange(rank: int, calm: bool, port: int, repetitions: int, folder: str) -> None:
    """One process: times of every size, µs, into a file."""
    bind(own_cores(rank, 2, threads=1))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    if calm:
        calm_gloo()
    found = []
    for entries in ENTRIES:
        tensor = torch.zeros(entries)
        times = []
        for _ in range(WARM_UP + repetitions):
            dist.barrier()
            started = time.perf_counter()
            dist.all_reduce(tensor)
            times.append((time.perf_counter() - started) * 1e6)
        found.append(times[WARM_UP:])
    np.save(Path(folder, f"{rank}.npy"), np.array(found))
    dist.barrier()
    dist.destroy_process_group()


def times_us(*, calm: bool, repetitions: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """[sizes, repetitions] of two new processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        tp.spawn(exchange, (calm, port, repetitions, folder), nprocs=2)
        return np.minimum(*(np.load(Path(folder, f"{rank}.npy")) for rank in range(2)))


@script(page="method.md", repeat=3, options={"--repetitions": {"type": int, "default": 400}})
def main(bench: Bench) -> None:
    repetitions = bench.given.repetitions
    rounds = [
        {calm: times_us(calm=calm, repetitions=repetitions) for calm in (False, True)}
        for _ in range(bench.repeat)
    ]
    rows = []
    for index, entries in enumerate(ENTRIES):
        cells, means = [], {}
        for calm in (False, True):
            times = np.concatenate([one[calm][index] for one in rounds])
            means[calm] = times.mean()
            stalls = (times > np.percentile(times, 10) + STALL_US).mean()
            cells += [f"{np.median(times):.0f} µs", f"{means[calm]:.0f} µs", f"{stalls:.0%}"]
        rows.append((f"{4 * entries:,} bytes", *cells, f"{means[False] / means[True]:.1f}"))
    heads = ("all-reduce of", "default loop: median", "mean", "stalls", "calm loop: median", "mean", "stalls")
    about = f"{bench.machine('torch')}; {bench.repeat} rounds of {repetitions} repetitions."
    bench.publish("\n".join([about, "", *table((*heads, "means' ratio"), rows, is_padded=False)]))
