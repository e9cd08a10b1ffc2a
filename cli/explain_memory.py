"""Memory by op, next to what torch allocated, and what would make a step fit, as text."""

from collections.abc import Sequence

from kernelcast.cli.tables import signed_percent, text_table
from kernelcast.cli.terminal import title, wrapped
from kernelcast.runtime import Estimate
from kernelcast.runtime.estimate.device_memory import Memory
from kernelcast.runtime.estimate.fitting_changes import FittingChange
from kernelcast.runtime.memory.breakdown import PARTS, StageBreakdown
from kernelcast.runtime.memory.communicators import communicator_buffers
from kernelcast.runtime.memory.snapshot import Snapshot
from kernelcast.runtime.views.formatting import counted, gibibytes, percent, seconds

_LEAST_SHARE = 0.001


def render_breakdown(found: Sequence[StageBreakdown]) -> str:
    """The fullest stage: a row per op, a column per part."""
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
    table = text_table(
        ("op", *parts, "sum", "share"),
        [
            (
                name,
                *(gibibytes(of_op[part]) if of_op.get(part) else "-" for part in parts),
                gibibytes(sum(of_op.values())),
                percent(sum(of_op.values()) / total),
            )
            for name, of_op in (
                *shown,
                *([("smaller ones", rest)] if any(rest.values()) else []),
                ("total", sums),
            )
        ],
        indent="  ",
        optional=("share", "workspace", "logits", "working"),
    )
    where = (
        f"at the {fullest.moment} of the first backward pass, micro-batches in flight: {fullest.in_flight:g}"
    )
    return title(f"Memory of a device of stage {fullest.stage} by op, at its fullest: {where}", table)


def render_reserved(estimate: Estimate) -> str:
    """What of a GPU's reserved memory NCCL's buffers take; empty without a group or without reserved memory."""
    reserved, buffers = estimate.memory.reserved_bytes, communicator_buffers(estimate.parallelism)
    if not (reserved and buffers.groups):
        return ""
    groups = f"{counted(len(buffers.groups), 'group')} ({', '.join(buffers.groups)})"
    sizes = f"{gibibytes(buffers.least_bytes)} to {gibibytes(buffers.most_bytes)}"
    return wrapped(
        f"Not in the total: NCCL's buffers, {sizes} for {groups} as published runs measured them. "
        f"{gibibytes(reserved)} of a device are reserved for these and CUDA (--reserved-memory)."
    )


def render_snapshot(snapshot: Snapshot, memory: Memory) -> str:
    """Allocated and reserved memory next to the prediction of the fullest stage."""
    stage = max(memory.stages, key=lambda one: one.total_bytes)
    reserved = stage.total_bytes + stage.fragments_bytes
    rows = [
        (name, gibibytes(measured), gibibytes(predicted), signed_percent(predicted / max(1, measured) - 1))
        for name, measured, predicted in (
            ("allocated at most", snapshot.largest_bytes, stage.total_bytes),
            ("reserved", snapshot.reserved_bytes, reserved),
        )
    ]
    table = text_table(("", "snapshot", "predicted", "error"), rows, indent="  ")
    return title(f"Snapshot of device {snapshot.device} next to stage {stage.stage}, the fullest", table)


_FIT = "What would make it fit"


def render_changes(changes: Sequence[FittingChange], estimate: Estimate, *, of: str = _FIT) -> str:
    """What would make the step fit, or faster, with its times."""
    if not changes:
        return title(
            of, "  no single change" + (", also not with full recomputation" if of == _FIT else " by 1 %")
        )
    rows = [
        (
            ", ".join(f"{name} {'even' if value is None else value}" for name, value in one.fields.items()),
            seconds(one.step_time_s, like=estimate.step_time_s),
            signed_percent(one.step_time_s / estimate.step_time_s - 1),
            gibibytes(one.memory_bytes),
        )
        for one in changes
    ]
    return title(of, text_table(("change", "step", "longer", "memory"), rows, indent="  "))
