"""Doubtful measurements, flagged and not fitted: faster than the hardware allows, or outliers of their operator."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint
from kernelcast.runtime.hardware.devices import ELEMENT_BYTES, device_named
from kernelcast.runtime.hardware.limits import limits, node_bytes_per_s
from kernelcast.runtime.operators import OPERATORS
from kernelcast.store.database import Database
from kernelcast.store.read import SampleRow
from kernelcast.store.records import Sample
from kernelcast.store.sqlite_errors import reading

IMPOSSIBLE, OUTLIER = "impossible", "outlier"
NEVER_TRAIN = frozenset({IMPOSSIBLE, OUTLIER})
"""Flags of samples that are excluded from training."""
DIFFERENCE = "difference"
NOTED = frozenset({DIFFERENCE})
"""Flags of imported times that training uses, with a note: a backward pass computed as full minus forward pass."""

FAR = 10.0
"""An outlier's time differs by more than this factor from the power law through the other workloads."""
_SPREADS = 6.0
"""... and by more than this number of robust standard deviations."""
_FEWEST = 20
_ROUNDS = 25
_SMALLEST_ERROR = 1e-3

_DECADE = 10.0
_FLAT = 1.1
_FEWEST_FLAT = 5
_MOST_IMPOSSIBLE = 0.5

Doubt = tuple[str, str]
"""A flag, and its detail in one line."""
_Array = NDArray[np.float64]


Timed = Sample | SampleRow


def find_doubts(
    samples: Sequence[Timed], compute: ComputeFingerprint | None, fabric: FabricFingerprint | None
) -> dict[int, Doubt]:
    """Doubtful samples by position, among samples of one device and fabric.

    A time is *impossible* when it is shorter than the device or its links allow, or as long as five impossible times
    of ten times the work: something other than the operator was timed. If more than half of the times of an operator,
    direction and layout are impossible, all are: the rest were only slow enough to pass the test.
    A time is an *outlier* when it differs by more than `FAR` from a robust power law through the possible times of its
    operator, direction and layout, and is also more than `FAR` above the limit of the device, which explains a thin
    product with a large weight, and the largest product. Samples without a time are never doubtful.
    """
    device = device_named(compute.device_name) if compute is not None else None
    cards = node_bytes_per_s(fabric.nics) if fabric is not None else None
    found: dict[int, Doubt] = {}
    groups: dict[tuple[object, ...], list[int]] = {}
    least_us = np.zeros(len(samples))
    for position, sample in enumerate(samples):
        if sample.time_us is None or sample.operator not in OPERATORS or sample.dtype not in ELEMENT_BYTES:
            continue
        op = OPERATORS[sample.operator]
        if sample.direction not in op.costs:
            continue
        layout = sample.vector[-2:] if op.is_collective else ()
        key = (sample.operator, sample.direction, sample.dtype, sample.variant, layout)
        groups.setdefault(key, []).append(position)
        for limit in limits(
            op,
            sample.direction,
            sample.vector,
            dtype=sample.dtype,
            element_bytes=ELEMENT_BYTES[sample.dtype],
            variant=sample.variant,
            device=device,
            node_bytes_per_s=cards,
        ):
            least_us[position] = max(least_us[position], limit.least_us)
            if why := limit.why_impossible(sample.time_us):
                found[position] = (IMPOSSIBLE, why)
    for positions in groups.values():
        own = [samples[position] for position in positions]
        work = np.array([_work(sample) for sample in own])
        times_us = np.array([sample.time_us for sample in own], dtype=np.float64)
        impossible = np.array([position in found for position in positions])
        for row, why in _plateau(work, times_us, impossible):
            found[positions[row]] = (IMPOSSIBLE, why)
            impossible[row] = True
        if (most := int(np.count_nonzero(impossible))) > _MOST_IMPOSSIBLE * len(own):
            why = f"{most:,} of {len(own):,} such samples are impossible by themselves"
            found.update((positions[row], (IMPOSSIBLE, why)) for row in np.flatnonzero(~impossible))
            impossible[:] = True
        possible = np.flatnonzero(~impossible)
        for row, why in _far(own, work, times_us, possible, FAR * least_us[positions]):
            found[positions[row]] = (OUTLIER, why)
    return found


def flagged(
    samples: Sequence[Sample], compute: ComputeFingerprint | None, fabric: FabricFingerprint | None
) -> tuple[Sample, ...]:
    """Samples of one device and fabric, with a flag added to doubtful samples."""
    doubts = find_doubts(samples, compute, fabric)
    return tuple(
        replace(sample, flags=(*sample.flags, doubts[position]))
        if position in doubts and doubts[position][0] not in dict(sample.flags)
        else sample
        for position, sample in enumerate(samples)
    )


def count_doubts(flags: Iterable[Sequence[Doubt]]) -> dict[str, int]:
    """Numbers of impossible samples and of outliers, from the flags of each sample; zeros included."""
    counts = Counter(flag for of_sample in flags for flag, _ in of_sample)
    return {flag: counts[flag] for flag in (IMPOSSIBLE, OUTLIER)}


def doubts_text(counts: Mapping[str, int], samples: int) -> str:
    """The counts as text, such as `3,742 impossible and 48 outliers of 86,845 samples, which train ignores`."""
    impossible, outliers = counts[IMPOSSIBLE], counts[OUTLIER]
    if not impossible and not outliers:
        return ""
    s = "" if outliers == 1 else "s"
    return (
        f"{impossible:,} impossible and {outliers:,} outlier{s} of {samples:,} samples, which train ignores"
    )


def _work(sample: Timed) -> float:
    """The work that a time should grow with: FLOPs of matrix products, else elements moved."""
    op = OPERATORS[sample.operator]
    if op.is_collective:
        return float(max(sample.vector[0], 1))
    moved = op.moved_bytes(sample.direction, sample.vector, 1)
    return max(op.flops(sample.direction, sample.vector), moved, 1.0)


def _plateau(work: _Array, times_us: _Array, impossible: NDArray[np.bool_]) -> Iterator[tuple[int, str]]:
    """Rows whose time equals that of impossible rows with ten times the work."""
    known = np.flatnonzero(impossible)
    known = known[np.argsort(times_us[known])]
    for row in np.flatnonzero(~impossible):
        low, high = np.searchsorted(times_us[known], [times_us[row] / _FLAT, times_us[row] * _FLAT])
        if high - low < _FEWEST_FLAT:
            continue
        larger = work[known[low:high]] / work[row]
        if np.count_nonzero(larger >= _DECADE) >= _FEWEST_FLAT:
            yield (
                int(row),
                (
                    f"{times_us[row]:.6g} µs, as for impossible samples of up to {larger.max():.3g} times the work"
                ),
            )


def _far(
    samples: Sequence[Timed],
    work: _Array,
    times_us: _Array,
    possible: NDArray[np.intp],
    explained_us: _Array,
) -> Iterator[tuple[int, str]]:
    """Rows far from a power law in the features, curved over the work, and longer than `explained_us`."""
    if len(possible) < _FEWEST:
        return
    logs = np.log(np.maximum(np.array([samples[row].vector for row in possible], dtype=np.float64), 1.0))
    logs = logs[:, np.ptp(logs, axis=0) > 0]
    size = np.log(work[possible])
    size = (size - size.mean()) / max(float(size.std()), 1e-9)
    straight = np.column_stack([np.ones(len(possible)), logs - logs.mean(axis=0)])
    wanted = np.log(times_us[possible])
    # A curve would bend towards a cluster of outliers: it is fitted without them.
    tame = np.abs(wanted - straight @ _least_deviations(straight, wanted)) <= 2 * np.log(FAR)
    curved = np.column_stack([straight, size**2, size**3])
    off = wanted - curved @ _least_deviations(curved[tame], wanted[tame])
    spread = 1.4826 * float(np.median(np.abs(off - np.median(off))))
    limit = max(np.log(FAR), _SPREADS * spread)
    for row in np.flatnonzero(np.abs(off) > limit):
        time_us = times_us[possible[row]]
        if time_us <= explained_us[possible[row]]:
            continue
        usual_us = time_us / np.exp(off[row])
        yield int(possible[row]), f"{time_us:.6g} µs, where the others suggest {usual_us:.4g} µs"


def _least_deviations(columns: _Array, wanted: _Array) -> _Array:
    """Coefficients [columns] with the least absolute deviations, by reweighted least squares."""
    weights = np.ones(len(wanted))
    solution: _Array = np.zeros(columns.shape[1])
    for _ in range(_ROUNDS):
        scaled = columns * weights[:, None]
        normal = columns.T @ scaled + 1e-9 * np.eye(columns.shape[1])
        solution = np.asarray(np.linalg.solve(normal, scaled.T @ wanted), dtype=np.float64)
        weights = 1 / np.maximum(np.abs(wanted - columns @ solution), _SMALLEST_ERROR)
    return solution


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtfulSamples:
    """`count` of the `samples` of an operator and direction have a `flag`; `example` is the detail of the first."""

    source: str
    hardware: str
    operator: str
    direction: str
    flag: str
    count: int
    samples: int
    example: str

    def __str__(self) -> str:
        return (
            f"{self.flag}: {self.count:,} of {self.samples:,} samples of {self.operator} ({self.direction}) on "
            f"{self.hardware}, from {self.source} ({self.example})"
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def doubtful_samples(database: Database) -> list[DoubtfulSamples]:
    """Doubtful samples, flagged now or when stored, highest counts first; DataError where a row is damaged."""
    measured: dict[tuple[str, str | None], list[SampleRow]] = {}
    counts: Counter[tuple[str, ...]] = Counter()
    totals: Counter[tuple[str, ...]] = Counter()
    examples: dict[tuple[str, ...], str] = {}
    with reading(database.path):
        hardware = {row.id: row for row in database.hardware_list()}
        fabrics = {row.id: row.fingerprint for row in database.fabric_list()}
        sources = {run.id: run.source.name for run in database.run_list()}
        for sample in database.read_samples():
            measured.setdefault((sample.compute_id, sample.fabric_id), []).append(sample)
        for (compute_id, fabric_id), samples in measured.items():
            device, fabric = hardware[compute_id], fabrics.get(fabric_id or "")
            doubts = find_doubts(samples, device.fingerprint, fabric)
            for position, sample in enumerate(samples):
                own = (sources[sample.run_id], device.description, sample.operator, sample.direction.value)
                totals[own] += 1
                stored = [doubt for doubt in sample.flags if doubt[0] in NEVER_TRAIN]
                for flag, detail in stored or [doubts[position]] if position in doubts or stored else []:
                    counts[*own, flag] += 1
                    examples.setdefault((*own, flag), detail)
    names = ("source", "hardware", "operator", "direction", "flag")
    return [
        DoubtfulSamples(
            **dict(zip(names, key, strict=True)), count=count, samples=totals[key[:-1]], example=examples[key]
        )
        for key, count in sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    ]
