"""Small operators with torch's own code kept in a CPU's caches, as in a step, and evicted with the data.

Both ways take turns in one run, on one core. Prints Markdown: medians of the quiet times, µs. What is kept:
collector/measuring/cache_state.py.
"""

from contextlib import nullcontext
from functools import partial
from unittest.mock import patch

import torch

from kernelcast.benchmarks.harness import Bench, in_turn, script
from kernelcast.collector.benches import BENCHES, Place, Point
from kernelcast.collector.measuring import cache_state
from kernelcast.collector.measuring.core_binding import bind, own_cores
from kernelcast.collector.measuring.harness import Effort, measure
from kernelcast.docs.markdown import table
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


@script(repeat=5)
def main(bench: Bench) -> None:
    bind(own_cores(0, 1, threads=1))
    torch.set_num_threads(1)
    place = Place(device=torch.device("cpu"), dtype=torch.float32)
    rows = []
    for operator, vector in SHAPES:
        backward = Direction.INPUT_GRADIENT if operator == "gemm" else Direction.BACKWARD
        for direction in (Direction.FORWARD, backward):
            ways = {
                name: partial(time_us, operator, vector, place, direction, is_kept=name == "kept")
                for name in ("kept", "evicted")
            }
            kept, evicted = in_turn(ways, bench.repeat, time_s=lambda way: way()).values()
            ratio = f"{evicted / kept:.2f}"
            rows.append((f"{operator} {list(vector)}", direction, f"{kept:.0f}", f"{evicted:.0f}", ratio))
    bench.publish("\n".join(table(("operator", "pass", "code kept, µs", "evicted, µs", "ratio"), rows)))
