"""Small operators with torch's own code kept in a CPU's caches, as in a step, and evicted with the data.

    python benchmarks/bench_caches.py [--rounds 5]

Both ways take turns in one run, on one core. Prints Markdown: medians over the rounds of the quiet times, µs. What is
kept: collector/measuring/cache_state.py.
"""

import argparse
from contextlib import nullcontext
from statistics import median
from unittest.mock import patch

import torch

from kernelcast.collector.benches import BENCHES, Place, Point
from kernelcast.collector.measuring import cache_state
from kernelcast.collector.measuring.core_binding import bind, own_cores
from kernelcast.collector.measuring.harness import Effort, measure
from kernelcast.runtime.operators import Direction
from kernelcast.store.statistics import quiet_us

SHAPES = (
    ("bias_add", (448, 288)),
    ("layer_norm", (1, 448, 288)),
    ("gelu", (1, 448, 288)),
    ("gemm", (448, 288, 288)),
)


def time_us(
    operator: str, vector: tuple[int, ...], place: Place, direction: Direction, *, is_kept: bool
) -> float:
    """The quiet time of one measurement, µs."""
    bench = BENCHES[operator](Point(operator=operator, vector=vector), place)
    with nullcontext() if is_kept else patch.object(cache_state, "_run_small_operators"):
        return quiet_us([one.time_us for one in measure(bench, place, (direction,), Effort())[direction]])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    bind(own_cores(0, 1, threads=1))
    torch.set_num_threads(1)
    place = Place(device=torch.device("cpu"), dtype=torch.float32)
    print("| operator | pass | code kept, µs | evicted, µs | ratio |\n|---|---|---|---|---|")
    for operator, vector in SHAPES:
        backward = Direction.INPUT_GRADIENT if operator == "gemm" else Direction.BACKWARD
        for direction in (Direction.FORWARD, backward):
            times = [
                [time_us(operator, vector, place, direction, is_kept=kept) for kept in (True, False)]
                for _ in range(rounds)
            ]
            kept, evicted = (median(column) for column in zip(*times, strict=True))
            print(
                f"| {operator} {list(vector)} | {direction} | {kept:.0f} | {evicted:.0f} | {evicted / kept:.2f} |"
            )


if __name__ == "__main__":
    main()
