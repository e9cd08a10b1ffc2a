"""The time to measure a point: from stored samples of this hardware, else from a few short probes."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from kernelcast.collector.benches import Bench, Place, Point
from kernelcast.collector.measuring.harness import Effort, measure
from kernelcast.collector.measuring.load import sustained_seconds
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.load import Load
from kernelcast.runtime.operators import OPERATORS, Direction, Key, Operator, Vector
from kernelcast.sampling.by_hardware import HardwareTimes
from kernelcast.sampling.by_prior import calls_us
from kernelcast.train.baseline import fit_baseline
from kernelcast.train.formula import Baseline
from kernelcast.train.prior import Prior

# Calls of an operator per measurement: ten to warm up, and two blocks, as most of them need.
_BLOCKS = 2
_CALLS = 10 + _BLOCKS * 15
_FEWEST_ROWS = 8
_SIDE = 1024  # rows and columns of the probe's product

Times = dict[Key, dict[Vector, float]]
"""µs by operator and direction, then by workload vector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds per point: from `fitted` baselines, else from a `prior`, else from a roofline of the probed rates; of
    another device, from what is known of that `hardware`.

    `source` describes them.
    """

    source: str
    overhead_s: float
    flops_per_s: float
    bytes_per_s: float
    element_bytes: int
    fitted: dict[Key, Baseline]
    prior: Prior | None = None
    hardware: HardwareTimes | None = None
    added_s: Mapping[int, float] = field(
        default_factory=dict
    )  # of sustained load, by directions of an operator

    def seconds(self, op: Operator, vectors: Sequence[Vector]) -> list[float]:
        """Seconds that measuring each workload takes."""
        total = np.zeros(len(vectors))
        fixed_s = self.overhead_s + self.added_s.get(len(op.directions), 0.0)
        if self.hardware is not None and (known := self.hardware.calls_us(op, vectors)) is not None:
            return [float(fixed_s + _CALLS * value / 1e6) for value in known]
        by_prior = (
            None if self.prior is None else calls_us(self.prior, op, np.array(vectors, dtype=np.float64))
        )
        if by_prior is not None and not any(
            (op.name, direction) in self.fitted for direction in op.directions
        ):
            return [float(fixed_s + _CALLS * value / 1e6) for value in by_prior]
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
        return [float(fixed_s + _CALLS * value) for value in total]


def cost_of_measuring(
    place: Place,
    times: Times,
    *,
    prior: Prior | None = None,
    load: Load = Load.BURST,
) -> Cost:
    """Probe the device for a second, and fit the stored times of it; a `prior` has those of what is not stored."""
    flops_per_s, bytes_per_s = _rates(place)
    fitted = {
        (name, direction): fit_baseline(
            "roofline",
            OPERATORS[name],
            direction,
            np.array(list(found), dtype=np.float64),
            np.array(list(found.values())),
        )
        for (name, direction), found in times.items()
        if len(found) >= _FEWEST_ROWS
    }
    known_by = [f"samples of {len({n for n, _ in fitted})} operators in the database"] if fitted else []
    prior = prior if prior is not None and prior.is_comparable else None
    known_by += [f"{prior.name}, scaled by {prior.scaled_by}"] if prior else []
    probed = f"probe kernels: {flops_per_s / 1e9:,.0f} GFLOP/s, {bytes_per_s / 1e9:,.1f} GB/s"
    return Cost(
        source="; ".join([*known_by, probed]),
        overhead_s=_overhead_s(place),
        flops_per_s=flops_per_s,
        bytes_per_s=bytes_per_s,
        element_bytes=place.dtype.itemsize,
        fitted=fitted,
        prior=prior,
        added_s={
            directions: sustained_seconds(place.device, blocks=_BLOCKS, passes=directions * (_CALLS - 10 + 2))
            for directions in {len(op.directions) for op in OPERATORS.values()}
            if load.is_sustained
        },
    )


def cost_on_hardware(place: Place, hardware: HardwareTimes) -> Cost:
    """What measuring takes on a device that is not there; what goes on around the calls is as it is here.

    Raises:
        UsageError: the table of devices does not have it.
    """
    device = hardware.device
    rate = device.most_flops_per_s(hardware.dtype) if device else None
    if device is None or rate is None:
        raise UsageError(f"device {hardware.name} has no published peaks for {hardware.dtype}")
    return Cost(
        source=f"operators of {hardware.name}, and what goes on around each measurement on this machine",
        overhead_s=_overhead_s(place),
        flops_per_s=rate,
        bytes_per_s=device.memory_bytes_per_s,
        element_bytes=place.dtype.itemsize,
        fitted={},
        hardware=hardware,
    )


def _rates(place: Place) -> tuple[float, float]:
    """FLOP/s of a product and bytes/s of an addition."""
    effort = Effort(warm_up_iterations=2, most_blocks=1)
    with torch.random.fork_rng(devices=[]):
        left, right = place.activation(_SIDE, _SIDE), place.activation(_SIDE, _SIDE)
        flops = 2 * _SIDE**3 / _forward_s(Bench(lambda: left @ right, [left, right]), place, effort)
        x, y = place.activation(4, _SIDE, _SIDE), place.activation(4, _SIDE, _SIDE)
        moved = 3 * x.nbytes / _forward_s(Bench(lambda: x + y, [x, y]), place, effort)
    return flops, moved


def _overhead_s(place: Place) -> float:
    """Seconds of measuring an operator that takes next to no time."""
    with torch.random.fork_rng(devices=[]):
        small = place.activation(8, 8)
        started = time.monotonic()
        _forward_s(Bench(lambda: small + small, [small]), place, Effort())
    return time.monotonic() - started


def _forward_s(bench: Bench, place: Place, effort: Effort) -> float:
    found = measure(bench, place, (Direction.FORWARD, Direction.BACKWARD), effort)
    return min(repetition.time_us for repetition in found[Direction.FORWARD]) / 1e6


def total_seconds(cost: Cost, points: Iterable[Point]) -> float:
    """Seconds of several points of one operator."""
    listed = list(points)
    return sum(cost.seconds(listed[0].law, [point.vector for point in listed])) if listed else 0.0
