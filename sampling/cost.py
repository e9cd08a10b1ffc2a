"""The time to measure a point: from stored samples of this hardware, a prior, another device's bundle, or probes.

Stored times are from this hardware, software and dtype; the chooser uses them too.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from kernelcast.collector.benches import Bench, Place, Point
from kernelcast.collector.machine.peaks import matmul_flops_per_s
from kernelcast.collector.measuring.harness import Effort, measure
from kernelcast.collector.measuring.load import sustained_seconds
from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.answers.sources import source_of
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.devices import Device, Load, device_named
from kernelcast.runtime.operators import OPERATORS, Direction, Key, Operator, Vector
from kernelcast.sampling.by_prior import calls_us
from kernelcast.store import Database, Run
from kernelcast.train.baseline import fit_baseline
from kernelcast.train.dataset import Array, Table
from kernelcast.train.formula import Baseline
from kernelcast.train.prior import Prior

Times = dict[Key, dict[Vector, float]]
"""µs by operator and direction, then by workload vector."""


def stored_times(database: Database, run: Run, dtype: str, load: Load) -> Times:
    """Shortest quiet time of every workload measured under the conditions of `run` and under `load`, µs."""
    rows = database.read_samples(**run.measured_under, dtype=dtype, load=load)
    times: Times = {}
    for row in rows:
        time_us = row.quiet_us if row.quiet_us is not None else row.time_us
        if time_us is None:
            continue
        found = times.setdefault((row.operator, row.direction), {})
        found[row.vector] = min(time_us, found.get(row.vector, time_us))
    return times


def tables_of(op: Operator, times: Times, vectors: Sequence[Vector]) -> list[Table]:
    """A table per direction of an operator, over the workloads that are known in all directions."""
    per_direction: list[Mapping[Vector, float]] = [
        times.get((op.name, direction), {}) for direction in op.directions
    ]
    complete = [vector for vector in vectors if all(vector in found for found in per_direction)]
    if not complete:
        return []
    return [
        Table(
            operator=op.name,
            direction=direction,
            workloads=np.array(complete, dtype=np.float64),
            times_us=np.array([found[vector] for vector in complete]),
        )
        for direction, found in zip(op.directions, per_direction, strict=True)
    ]


# Calls of an operator per measurement: ten to warm up, and two blocks, as most of them need.
_BLOCKS = 2
_CALLS = 10 + _BLOCKS * 15
_FEWEST_ROWS = 8
_SIDE = 1024  # rows and columns of the probe's sums


class HardwareTimes:
    """Times of operators on the device of `bundle`; substitutes or published peaks cover operators that it lacks."""

    def __init__(self, bundle: Bundle) -> None:
        manifest = bundle.manifest
        self.dtype, self.name = manifest.dtype, manifest.compute[0].device_name
        self.device: Device | None = device_named(self.name)
        self._predictor = Predictor(bundle)

    def calls_us(self, op: Operator, vectors: Sequence[Vector]) -> Array | None:
        """Time of a call in all directions, [vectors] in µs; None where a direction has no answer."""
        entries = self._predictor.bundle.entries
        total = np.zeros(len(vectors))
        for direction in op.directions:
            source = source_of((op.name, direction), entries)
            if source is None:
                return None
            asked = [source.asked(vector, entries[source.answered_by]) for vector in vectors]
            times_us = self._predictor.predict_us(*source.answered_by, [vector for vector, _ in asked])
            total += times_us * [factor for _, factor in asked]
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds per point, as `source` says: for this device from `fitted` baselines, a `prior`, or a roofline of probed
    rates; for another from its `hardware`. `added_s` is sustained load's, by number of directions.
    """

    source: str
    overhead_s: float
    flops_per_s: float
    bytes_per_s: float
    element_bytes: int
    fitted: dict[Key, Baseline]
    prior: Prior | None = None
    hardware: HardwareTimes | None = None
    added_s: Mapping[int, float] = field(default_factory=dict)

    def seconds(self, op: Operator, vectors: Sequence[Vector]) -> list[float]:
        fixed_s = self.overhead_s + self.added_s.get(len(op.directions), 0.0)
        return [float(fixed_s + _CALLS * call_us / 1e6) for call_us in self._calls_us(op, vectors)]

    def _calls_us(self, op: Operator, vectors: Sequence[Vector]) -> Array:
        """Time of a call in all directions, [vectors] in µs."""
        if self.hardware is not None and (known := self.hardware.calls_us(op, vectors)) is not None:
            return known
        workloads = np.array(vectors, dtype=np.float64)
        is_fitted = any((op.name, direction) in self.fitted for direction in op.directions)
        if self.prior is not None and not is_fitted:
            known = calls_us(self.prior, op, workloads)
            if known is not None:
                return known
        total = np.zeros(len(vectors))
        for direction in op.directions:
            if (baseline := self.fitted.get((op.name, direction))) is not None:
                total += np.exp(baseline.predict_log(workloads))
            else:
                total += [self._roofline_us(op, direction, vector) for vector in vectors]
        return total

    def _roofline_us(self, op: Operator, direction: Direction, vector: Vector) -> float:
        compute_s = op.flops(direction, vector) / self.flops_per_s
        return 1e6 * max(compute_s, op.moved_bytes(direction, vector, self.element_bytes) / self.bytes_per_s)


def cost_of_measuring(
    place: Place,
    times: Times,
    *,
    prior: Prior | None = None,
    load: Load = Load.BURST,
) -> Cost:
    """Probe the device for a second and fit its stored times; a `prior` covers operators without stored times."""
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
    """The cost on a device that is not installed here, with this machine's overhead; UsageError without known peaks."""
    device = hardware.device
    rate = device.most_flops_per_s(hardware.dtype) if device else None
    if device is None or rate is None:
        raise UsageError(f"device {hardware.name} has no published peaks for {hardware.dtype}")
    return Cost(
        source=f"operators of {hardware.name}, and the overhead of each measurement on this machine",
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
        flops = matmul_flops_per_s(place.dtype, place.device)
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
    listed = list(points)
    return sum(cost.seconds(listed[0].law, [point.vector for point in listed])) if listed else 0.0
