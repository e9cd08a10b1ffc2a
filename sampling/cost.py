"""How long measuring a point takes: from what is stored of this hardware, else from a few short probes."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kernelcast.collector.benches import BENCHES, Place
from kernelcast.collector.measuring.harness import Effort, measure
from kernelcast.collector.plans.plan import Point
from kernelcast.runtime.operators import OPERATORS, Direction, Operator, Shape
from kernelcast.train.baseline import Baseline, fit_baseline

# Calls of an operator per measurement: ten to warm up, and two blocks, as most of them need.
_CALLS = 10 + 2 * 15
_FEWEST_ROWS = 8
_LARGEST = 1024  # rows and columns of the probe's product

Times = dict[tuple[str, Direction], dict[tuple[int, ...], float]]
"""µs by operator and direction, then by workload vector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds per point. `source` says where the rates come from; times come from `fitted` baselines where there are
    some, else from a roofline of the probed `flops_per_s` and `bytes_per_s`.
    """

    source: str
    overhead_s: float
    flops_per_s: float
    bytes_per_s: float
    element_bytes: int
    fitted: dict[tuple[str, Direction], Baseline]

    def seconds(self, op: Operator, vectors: Sequence[tuple[int, ...]]) -> list[float]:
        """Seconds that measuring each workload takes."""
        total = np.zeros(len(vectors))
        for direction in op.directions:
            baseline = self.fitted.get((op.name, direction))
            if baseline is not None:
                total += np.exp(baseline.predict_log(np.array(vectors, dtype=np.float64))) / 1e6
            else:
                total += [
                    max(
                        op.flops(direction, vector) / self.flops_per_s,
                        op.moved_bytes(direction, vector, self.element_bytes) / self.bytes_per_s,
                    )
                    for vector in vectors
                ]
        return [float(self.overhead_s + _CALLS * value) for value in total]


def cost_of_measuring(place: Place, times: Times, *, stored: bool = True) -> Cost:
    """Probe the device for a second, and fit what is stored of it."""
    flops_per_s, bytes_per_s, overhead_s = _probe(place)
    fitted = {
        (name, direction): fit_baseline(
            "roofline",
            OPERATORS[name],
            direction,
            np.array(list(found), dtype=np.float64),
            np.array(list(found.values())),
        )
        for (name, direction), found in times.items()
        if stored and len(found) >= _FEWEST_ROWS
    }
    probed = f"probe kernels: {flops_per_s / 1e9:,.0f} GFLOP/s, {bytes_per_s / 1e9:,.1f} GB/s"
    source = (
        f"samples of {len({n for n, _ in fitted})} operators in the database; {probed}" if fitted else probed
    )
    return Cost(
        source=source,
        overhead_s=overhead_s,
        flops_per_s=flops_per_s,
        bytes_per_s=bytes_per_s,
        element_bytes=place.dtype.itemsize,
        fitted=fitted,
    )


def _probe(place: Place) -> tuple[float, float, float]:
    """FLOP/s of a product, bytes/s of a copy, and the seconds that measuring next to nothing takes."""
    effort = Effort(warm_up_iterations=2, most_blocks=1)
    product = Shape(sequence_length=_LARGEST, hidden_size=_LARGEST, mlp_size=_LARGEST)
    copied = Shape(micro_batch=4, sequence_length=_LARGEST, hidden_size=_LARGEST)
    small = Shape(sequence_length=8, hidden_size=8)
    flops = _rate("mlp_up_linear", product, place, effort, flops=True)
    moved = _rate("residual_add", copied, place, effort, flops=False)
    started = time.monotonic()
    _forward_us("residual_add", small, place, Effort())
    return flops, moved, time.monotonic() - started


def _rate(name: str, shape: Shape, place: Place, effort: Effort, *, flops: bool) -> float:
    op = OPERATORS[name]
    vector = op.workload(shape)
    work = (
        op.flops(Direction.FORWARD, vector)
        if flops
        else op.moved_bytes(Direction.FORWARD, vector, place.dtype.itemsize)
    )
    return work / _forward_us(name, shape, place, effort) * 1e6


def _forward_us(name: str, shape: Shape, place: Place, effort: Effort) -> float:
    with torch.random.fork_rng(devices=[]):
        found = measure(BENCHES[name], shape, place, OPERATORS[name].directions, effort)
    return min(repetition.time_us for repetition in found[Direction.FORWARD])


def total_seconds(cost: Cost, points: Iterable[Point]) -> float:
    """Seconds of several points of one operator."""
    listed = list(points)
    return sum(cost.seconds(listed[0].operator, [point.vector for point in listed])) if listed else 0.0
