"""The samples that may train a regressor; every other one is left out with a reason."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod

from kernelcast.runtime import DataError
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, canonical_json
from kernelcast.runtime.operators import OPERATORS, Direction, Operator
from kernelcast.store import SampleRow
from kernelcast.store.doubts import NEVER_TRAIN, Doubt, count_doubts, find_doubts
from kernelcast.train.dataset import Row
from kernelcast.train.notes import Note

# Products of a workload's features are float32 in the trees and in ONNX, which ends at 3e38.
_LARGEST_PRODUCT = 1e30

# Condition of a run: how many processes of a node ran an operator at once. Imports without it count as one process.
_PROCESSES = "processes_per_node"
# Condition of a run: how many groups of a collective shared a node. It follows from the layout in the vector.
_GROUPS = "groups_per_node"

# nccl-tests measures both ways. Its transfers between more than two processes are rings, in layouts of their own.
_IN_PLACE = ("in-place",)
_OUT_OF_PLACE = ("out-of-place", "out-of-place, ring")


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """Training samples, one of `rows` each, and notes on left-out ones; `doubts` as of `count_doubts`."""

    samples: tuple[SampleRow, ...]
    rows: tuple[Row, ...]
    skipped: tuple[Note, ...]
    doubts: Mapping[str, int]


def statistic_of_all(samples: Sequence[SampleRow]) -> str:
    """The statistic that every sample has: a quiet time takes repetitions, which imports rarely hold."""
    return "quiet" if all(sample.quiet_us is not None for sample in samples) else "middle_five"


def screen(
    samples: Sequence[SampleRow],
    *,
    statistic: str,
    where: str,
    compute: ComputeFingerprint | None = None,
    fabric: FabricFingerprint | None = None,
) -> Screened:
    """Turn samples with a time into rows, and the others into notes.

    All are of one device, `compute`, and one `fabric`. Physically impossible samples (doubts.py) never train, flagged
    in the database or not. DataError where a sample lacks the statistic (an import may not know repetitions).
    """
    doubts = _doubts(samples, compute, fabric)
    grouped: dict[tuple[str, Direction], list[SampleRow]] = {}
    for sample in samples:
        grouped.setdefault((sample.operator, sample.direction), []).append(sample)
    kept: list[tuple[SampleRow, Row]] = []
    skipped: list[Note] = []
    for (operator, direction), measured in sorted(grouped.items()):
        group = [sample for sample in measured if sample.sample_id not in doubts]
        for reason in _why_doubted(measured, doubts):
            skipped.append(Note(operator=operator, direction=direction, text=reason))
        if not group:
            continue
        group, unused = _as_called(operator, group)
        if unused:
            skipped.append(Note(operator=operator, direction=direction, text=unused))
        if reason := _why_none(operator, direction, group):
            skipped.append(Note(operator=operator, direction=direction, text=reason))
            continue
        usable = [
            (sample, row)
            for sample in group
            if 0 < (row := _row(sample, statistic, where)).time_us < inf
            and prod(row.vector) <= _LARGEST_PRODUCT
        ]
        if len(usable) < len(group):
            reason = (
                f"{len(group) - len(usable)} of {len(group)} samples, whose {statistic} time is not above 0 and finite "
                f"or whose workload multiplies to more than {_LARGEST_PRODUCT:.0e}"
            )
            skipped.append(Note(operator=operator, direction=direction, text=reason))
        kept += usable
    return Screened(
        samples=tuple(sample for sample, _ in kept),
        rows=tuple(row for _, row in kept),
        skipped=tuple(skipped),
        doubts=count_doubts([doubt] for doubt in doubts.values()),
    )


def _doubts(
    samples: Sequence[SampleRow], compute: ComputeFingerprint | None, fabric: FabricFingerprint | None
) -> dict[str, Doubt]:
    """Doubts by sample id: stored ones, else computed now."""
    found = {
        samples[position].sample_id: doubt
        for position, doubt in find_doubts(samples, compute, fabric).items()
    }
    stored = {s.sample_id: doubt for s in samples for doubt in s.flags if doubt[0] in NEVER_TRAIN}
    return found | stored


def _why_doubted(measured: Sequence[SampleRow], doubts: Mapping[str, Doubt]) -> list[str]:
    """A reason for each kind of doubt, with the first sample's as an example."""
    found = [(sample, doubts[sample.sample_id]) for sample in measured if sample.sample_id in doubts]
    counts = Counter(flag for _, (flag, _) in found)
    reasons = []
    for flag, count in sorted(counts.items()):
        example, detail = next((sample, detail) for sample, (kind, detail) in found if kind == flag)
        vector = ", ".join(map(str, example.vector))
        reasons.append(f"{count:,} of {len(measured):,} samples, flagged {flag} ([{vector}]: {detail})")
    return reasons


def _as_called(operator: str, group: list[SampleRow]) -> tuple[list[SampleRow], str]:
    """A collective's samples measured in the way that training frameworks call it, and what that leaves out."""
    called = _called_variants(OPERATORS.get(operator))
    kept = [sample for sample in group if sample.variant in called]
    if not kept or len(kept) == len(group):
        return group, ""
    others = "; ".join(sorted({sample.variant or "unnamed" for sample in group} - set(called)))
    return (
        kept,
        f"{len(group) - len(kept)} of {len(group)} samples, measured {others}: frameworks do not call it this way",
    )


def _called_variants(op: Operator | None) -> tuple[str, ...]:
    if op is None or not op.is_collective:
        return ()
    return _IN_PLACE if op.is_in_place else _OUT_OF_PLACE


def _why_none(operator: str, direction: Direction, group: Sequence[SampleRow]) -> str:
    """Why an operator and direction cannot train; empty if they can."""
    known = OPERATORS.get(operator)
    if known is None or direction not in known.costs:
        return "this version has no such operator and direction"
    called = _called_variants(known)
    ignored = _GROUPS if known.is_collective else _PROCESSES
    ways = sorted(
        {
            (
                "" if sample.variant in called else sample.variant,
                canonical_json({name: value for name, value in sample.conditions.items() if name != ignored}),
            )
            for sample in group
        }
    )
    if len(ways) > 1:
        listed = "; ".join(" ".join(filter(None, way)) for way in ways)
        return f"measured in several ways, expected one: {listed}"
    return ""


def _row(sample: SampleRow, statistic: str, where: str) -> Row:
    is_collective = OPERATORS[sample.operator].is_collective
    time_us = sample.quiet_us if statistic == "quiet" else sample.time_us
    if statistic == "quiet" and is_collective and sample.inner_mean_us is not None:
        # Even a quiet step makes dozens of exchanges, so their mean counts, while the quiet time is the luckiest
        # one's. The mean leaves out rare stalls, which also happen on an idle machine.
        time_us = sample.inner_mean_us
    if time_us is None:
        raise DataError(
            f"{where}: sample {sample.sample_id} of {sample.operator} has no {statistic} time, "
            "expected one; train with --statistic middle_five, or measure it here"
        )
    processes = sample.conditions.get(_PROCESSES, 1)
    if is_collective or type(processes) is not int or processes < 1:
        processes = 1
    return Row(
        operator=sample.operator,
        direction=sample.direction,
        vector=sample.vector,
        time_us=time_us,
        role=sample.role,
        processes_per_node=processes,
        load=sample.load,
        run_id=sample.run_id,
        origin=sample.origin,
    )
