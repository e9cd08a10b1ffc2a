"""What each operator costs in a step, summed over the stages."""

from dataclasses import dataclass

from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.step.calls import ONCE_PER_UPDATE


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTotal:
    """Calls of one operator in one direction on one device of every stage, and their time in a step."""

    operator: str
    direction: str
    calls: int
    time_s: float


def operator_totals(estimate: Estimate) -> list[OperatorTotal]:
    """The longest first. One update runs every micro-batch once, so rows per micro-batch count that often."""
    totals: dict[tuple[str, str], tuple[int, float]] = {}
    for row in estimate.operators:
        repeats = 1 if row.component in ONCE_PER_UPDATE else estimate.parallelism.micro_batches
        calls, time_s = totals.get((row.operator, row.direction.value), (0, 0.0))
        totals[row.operator, row.direction.value] = (
            calls + repeats * row.count,
            time_s + repeats * row.total_s,
        )
    rows = [
        OperatorTotal(operator=operator, direction=direction, calls=calls, time_s=time_s)
        for (operator, direction), (calls, time_s) in totals.items()
    ]
    return sorted(rows, key=lambda row: (-row.time_s, row.operator, row.direction))
