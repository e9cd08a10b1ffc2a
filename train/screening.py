"""Which samples may train a regressor. What may not is left out by name, never in silence."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from kernelcast.runtime import DataError
from kernelcast.runtime.fingerprint import canonical_json
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.store import SampleRow
from kernelcast.train.dataset import Row

# Products of a workload's features are float32 in the trees and in ONNX, which ends at 3e38.
_LARGEST_PRODUCT = 1e30


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """An operator and direction that got no regressor or lost samples, and why."""

    operator: str
    direction: Direction
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """Samples that train, each with its `rows` entry, and what was left out."""

    samples: tuple[SampleRow, ...]
    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...]


def screen(samples: Sequence[SampleRow], *, statistic: str, where: str) -> Screened:
    """Sort samples with a time into rows, and those that cannot train into reasons.

    Raises:
        DataError: a sample has no such statistic (a quiet time takes repetitions, which an import may not know).
    """
    grouped: dict[tuple[str, Direction], list[SampleRow]] = {}
    for sample in samples:
        grouped.setdefault((sample.operator, sample.direction), []).append(sample)
    kept: list[tuple[SampleRow, Row]] = []
    skipped: list[Skipped] = []
    for (operator, direction), group in sorted(grouped.items()):
        if reason := _why_none(operator, direction, group):
            skipped.append(Skipped(operator=operator, direction=direction, reason=reason))
            continue
        usable = [
            (sample, row)
            for sample in group
            if (row := _row(sample, statistic, where)).time_us > 0 and prod(row.vector) <= _LARGEST_PRODUCT
        ]
        if len(usable) < len(group):
            reason = (
                f"{len(group) - len(usable)} of {len(group)} samples, whose {statistic} time is not above 0 "
                f"or whose workload multiplies to more than {_LARGEST_PRODUCT:.0e}"
            )
            skipped.append(Skipped(operator=operator, direction=direction, reason=reason))
        kept += usable
    return Screened(
        samples=tuple(sample for sample, _ in kept),
        rows=tuple(row for _, row in kept),
        skipped=tuple(skipped),
    )


def _why_none(operator: str, direction: Direction, group: Sequence[SampleRow]) -> str:
    """Why nothing of an operator and direction can train; empty where it can."""
    known = OPERATORS.get(operator)
    if known is None or direction not in known.directions:
        return "this version has no such operator and direction"
    ways = sorted({(sample.variant, canonical_json(dict(sample.conditions))) for sample in group})
    if len(ways) > 1:
        listed = "; ".join(" ".join(filter(None, way)) for way in ways)
        return f"measured in several ways, expected one: {listed}"
    return ""


def _row(sample: SampleRow, statistic: str, where: str) -> Row:
    time_us = sample.quiet_us if statistic == "quiet" else sample.time_us
    if time_us is None:
        raise DataError(
            f"{where}: sample {sample.sample_id} of {sample.operator} has no {statistic} time, "
            "expected one; train with --statistic middle_five, or measure it here"
        )
    return Row(operator=sample.operator, direction=sample.direction, vector=sample.vector, time_us=time_us)
