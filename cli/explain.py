"""`kernelcast predict --explain`: where an operator's times come from, memory by op, and what would make a step fit."""

import heapq
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kernelcast.cli.tables import signed_percent, table_of, text_table
from kernelcast.cli.terminal import title
from kernelcast.runtime import Estimate
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.bundle.manifest import Manifest
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import needs_extra
from kernelcast.runtime.estimate.device_memory import Memory
from kernelcast.runtime.estimate.explanation import Explanation, explain_operator
from kernelcast.runtime.estimate.fitting_changes import FittingChange
from kernelcast.runtime.json_text import plain_values
from kernelcast.runtime.memory.breakdown import PARTS, StageBreakdown
from kernelcast.runtime.memory.snapshot import Snapshot
from kernelcast.runtime.operators import OPERATORS, role_name
from kernelcast.runtime.views.formatting import between, gibibytes, percent, seconds

NEAREST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class NearSample:
    """A measured sample near the predicted workload; `distance` is between the logarithms of workload vectors."""

    vector: tuple[int, ...]
    distance: float
    time_us: float
    hardware: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """An explanation, and the nearest samples; None without a database."""

    explanation: Explanation
    nearest: tuple[NearSample, ...] | None

    def to_dict(self) -> dict[str, Any]:
        values = self.explanation.to_dict()
        return values if self.nearest is None else values | plain_values(self, "nearest")


def explain(
    estimate: Estimate, bundle: Bundle, operator: str, database: Path | None
) -> tuple[Explained, ...]:
    """Explain every distinct call of `operator`, with the nearest samples of `database`.

    UsageError for an operator that is unknown or not in the step; DataError for a database that cannot be read.
    """
    explanations = explain_operator(estimate, bundle, operator)
    if database is None:
        return tuple(Explained(explanation=one, nearest=None) for one in explanations)
    found = _nearest_samples(database, explanations, bundle.manifest)
    return tuple(
        Explained(explanation=one, nearest=samples) for one, samples in zip(explanations, found, strict=True)
    )


def _nearest_samples(
    path: Path, explanations: Sequence[Explanation], manifest: Manifest
) -> Iterator[tuple[NearSample, ...]]:
    """For every explanation the samples of its operator and direction nearest to its workload, nearest first."""
    with needs_extra("--db", "store"):
        from kernelcast.store import Database, Status
    with Database.open(path, read_only=True) as database:
        hardware = {row.id: row.description for row in database.hardware_list()}
        for one in explanations:
            rows = database.read_samples(
                operator=one.entry.operator, direction=one.direction, dtype=manifest.dtype, status=Status.OK
            )
            asked = [feature.value for feature in one.features]
            samples = [
                NearSample(
                    vector=row.vector,
                    distance=log_distance(asked, row.vector),
                    time_us=row.quiet_us
                    if manifest.statistic == "quiet" and row.quiet_us is not None
                    else row.time_us,
                    hardware=hardware[row.compute_id],
                )
                for row in rows
                if row.time_us is not None
            ]
            yield tuple(
                heapq.nsmallest(NEAREST, samples, key=lambda sample: (sample.distance, sample.time_us))
            )


def log_distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Euclidean distance of the logarithms; entries below 1 count as 1."""
    return math.dist([math.log(max(1, v)) for v in one], [math.log(max(1, v)) for v in other])


def render_explanations(explained: Sequence[Explained]) -> str:
    """Explanations as readable text, one after the other."""
    return "\n\n".join(_render(one) for one in explained)


def _render(explained: Explained) -> str:
    one = explained.explanation
    entry = one.entry
    beyond = "" if entry.extrapolation_error is None else f", {entry.extrapolation_error:.1%} beyond it"
    coverage = entry.interval_coverage if one.inside else None
    covered = "" if coverage is None else f"; {coverage:.0%} of held-out samples are within such intervals"
    lines = [
        f"{_called(one)} ({one.direction})",
        f"  time       {seconds(one.time_us / 1e6)}, "
        f"{between(one.low_us / 1e6, one.high_us / 1e6, like=one.time_us / 1e6)} (90 %){covered}",
        f"  calls      {one.calls:,} per step, {seconds(one.total_s)}, {one.share:.1%} of the devices' work",
        f"  regressor  {entry.algorithm}, form {entry.form}, {entry.rows:,} samples, "
        f"error {entry.validation_error:.1%} in its range{beyond}",
    ]
    if not OPERATORS[entry.operator].is_collective:
        lines.append(f"  load       {entry.load.in_words}")
    if entry.processes_per_node > 1:
        lines.append(f"  measured   with {entry.processes_per_node} processes per node running it at once")
    if entry.key != (one.operator, one.direction):
        share = "" if one.factor == 1 else f"{one.factor:g} × "
        lines.append(
            f"  substitute {one.operator} ({one.direction}) is not in the bundle; "
            f"the time is {share}that of {entry.operator} ({entry.direction})"
        )
    if one.calibration_factor != 1:
        kind = OPERATORS[one.operator].operator_class
        lines.append(
            f"  calibrated × {one.calibration_factor:.3f} (for {kind} operators, fitted to measured steps)"
        )
    if one.kernel is not None:
        kernel = one.kernel.values
        lines.append(
            f"  kernel     × {kernel['factor']:.3f} ({kernel['asked']} instead of the measured {kernel['measured']})"
        )
    if entry.layouts:
        measured = ", ".join(f"{nodes} × {gpus}" for nodes, gpus in entry.layouts)
        lines.append(f"  layouts    {measured} measured (nodes × devices per node)")
    table = table_of(
        (*one.features, *([one.elements] if one.elements else [])),
        ("feature", lambda feature: feature.name),
        ("unit", lambda feature: feature.unit),
        ("value", lambda feature: f"{feature.value:,}"),
        ("trained from", lambda feature: f"{feature.minimum:,.0f}"),
        ("to", lambda feature: f"{feature.maximum:,.0f}"),
        ("inside", lambda feature: {True: "yes", False: "NO", None: "-"}[feature.inside]),
        indent="  ",
    )
    lines += ["", table]
    if explained.nearest is not None:
        lines += ["", _nearest(explained.nearest, [feature.name for feature in one.features])]
    return "\n".join(lines)


def _called(one: Explanation) -> str:
    """The operator with its role, and the role's name in the paper's Table I."""
    in_paper = role_name(one.operator, one.role)
    called = " ".join(filter(None, (one.operator, one.role)))
    return called if in_paper.startswith(one.operator) else f"{called}, {in_paper}"


def _nearest(samples: Sequence[NearSample], features: Sequence[str]) -> str:
    if not samples:
        return "  The database holds no samples of it."
    rows = [
        [
            *(f"{value:,}" for value in sample.vector),
            f"{sample.distance:.3f}",
            seconds(sample.time_us / 1e6),
            sample.hardware,
        ]
        for sample in samples
    ]
    return "  Nearest samples (distance between logarithms)\n" + text_table(
        (*features, "distance", "time", "hardware"), rows, indent="  "
    )


_LEAST_SHARE = 0.001


def render_breakdown(found: Sequence[StageBreakdown], memory: Memory) -> str:
    fullest = max(found, key=lambda one: sum(op.size_bytes for op in one.ops))
    sizes: dict[str, dict[str, int]] = {}
    for op in fullest.ops:
        sizes.setdefault(op.op, {})[op.part] = op.size_bytes
    total = sum(op.size_bytes for op in fullest.ops)
    parts = [part for part in PARTS if any(part in of_op for of_op in sizes.values())]
    rows = sorted(sizes.items(), key=lambda one: -sum(one[1].values()))
    shown = [(name, of_op) for name, of_op in rows if sum(of_op.values()) >= _LEAST_SHARE * total]
    rest = {part: sum(of_op.get(part, 0) for _, of_op in rows[len(shown) :]) for part in parts}
    sums = {part: sum(of_op.get(part, 0) for of_op in sizes.values()) for part in parts}
    # Not of torch's allocator, so not in the total.
    nccl, buffers = f"NCCL: {', '.join(memory.communicators)}", sum(memory.communicators.values())
    table = text_table(
        ("op", *parts, "sum", "share"),
        [
            (
                name,
                *(gibibytes(of_op[part]) if of_op.get(part) else "-" for part in parts),
                gibibytes(sum(of_op.values())),
                percent(sum(of_op.values()) / (total + buffers)),
            )
            for name, of_op in (
                *shown,
                *([("smaller ones", rest)] if any(rest.values()) else []),
                ("total", sums),
                *([(nccl, {nccl: buffers}), ("with NCCL", sums | {nccl: buffers})] if buffers else []),
            )
        ],
        indent="  ",
        optional=("share", "workspace", "logits", "working"),
    )
    chunk = "" if fullest.chunk == fullest.stage else f" through chunk {fullest.chunk}"
    where = (
        f"at the {fullest.moment} of the backward pass of micro-batch {fullest.micro_batch}{chunk}, "
        f"micro-batches in flight: {fullest.in_flight:g}"
    )
    return title(f"Memory of a device of stage {fullest.stage} by op, at its fullest: {where}", table)


def render_snapshot(snapshot: Snapshot, memory: Memory) -> str:
    """Measured memory, and the parts of a framework's own formula, next to the prediction of the fullest stage."""
    stage = max(memory.stages, key=lambda one: one.total_bytes)
    reserved = stage.total_bytes + stage.fragments_bytes
    states = stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
    parts = {"activation": stage.activations_bytes + stage.logits_bytes, "total": stage.total_bytes}
    found = [
        ("allocated at most", snapshot.largest_bytes, stage.total_bytes),
        ("reserved", snapshot.reserved_bytes, reserved),
        *((f"theory: {name}", size, parts.get(name, states)) for name, size in snapshot.theoretical.items()),
    ]
    rows = [
        (name, gibibytes(size), gibibytes(predicted), signed_percent(predicted / max(1, size) - 1))
        for name, size, predicted in found
        if size is not None
    ]
    table = text_table(("", "snapshot", "predicted", "error"), rows, indent="  ")
    of = "" if snapshot.device is None else f" of device {snapshot.device}"
    return title(f"Snapshot{of} next to stage {stage.stage}, the fullest", table)


_FIT = "What would make it fit"


def render_changes(changes: Sequence[FittingChange], estimate: Estimate, *, of: str = _FIT) -> str:
    if not changes:
        return title(
            of, "  no single change" + (", not even with full recomputation" if of == _FIT else " by 1 %")
        )
    rows = [
        (
            one.fields_text + (f" ({devices})" if (devices := one.devices_text) else ""),
            seconds(one.step_time_s, like=estimate.step_time_s),
            signed_percent(one.step_time_s / estimate.step_time_s - 1),
            gibibytes(one.memory_bytes),
        )
        for one in changes
    ]
    return title(of, text_table(("change", "step", "longer", "memory"), rows, indent="  "))
