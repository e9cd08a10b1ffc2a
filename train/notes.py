"""What rows leave doubtful: times that contradict each other, times that are all equal, outliers."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kernelcast.runtime.operators import Direction
from kernelcast.store import SampleRow
from kernelcast.store.doubts import NOTED
from kernelcast.train.dataset import Array, Conflict, Row, Table, conflicts

# Robust standard deviations of log(held-out prediction / measured) within a layout or table.
_FARTHEST = 3.0
# Where nearly all rows agree, three deviations are next to nothing: smaller errors than these are no outliers.
_LEAST_ERROR = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something to know about an operator's rows."""

    operator: str
    direction: Direction
    text: str


def notes_on(rows: Iterable[Row], tables: Iterable[Table]) -> tuple[Note, ...]:
    """Notes on rows of one workload that contradict each other, and on collectives measured in one layout only."""
    found = [
        Note(operator=conflict.operator, direction=conflict.direction, text=_conflict(conflict))
        for conflict in conflicts(rows)
    ]
    for table in tables:
        if len(table.layouts) == 1:
            [(nodes, gpus)] = table.layouts
            text = f"measured on {nodes} × {gpus} processes only: times of other layouts are guesses"
            found.append(Note(operator=table.operator, direction=table.direction, text=text))
    return tuple(found)


def notes_on_flags(samples: Sequence[SampleRow]) -> tuple[Note, ...]:
    """Notes on training samples that carry a flag of `NOTED`, each with an example's detail."""
    counts = Counter((sample.operator, sample.direction) for sample in samples)
    flagged: dict[tuple[str, Direction, str], list[str]] = {}
    for sample in samples:
        for flag, detail in sample.flags:
            if flag in NOTED:
                flagged.setdefault((sample.operator, sample.direction, flag), []).append(detail)
    return tuple(
        Note(
            operator=operator,
            direction=direction,
            text=f"{len(details):,} of {counts[operator, direction]:,} samples are flagged {flag} ({details[0]})",
        )
        for (operator, direction, flag), details in sorted(flagged.items())
    )


def _conflict(conflict: Conflict) -> str:
    vector = ", ".join(map(str, conflict.worst_vector))
    return (
        f"{conflict.workloads} workloads were measured several times with times up to {conflict.factor:.3g}× apart "
        f"(worst: [{vector}]); the middle one counts"
    )


def constant_times(table: Table) -> str:
    """Why a table cannot be fitted because all its times are equal; empty where they differ.

    Work of different sizes that takes exactly as long was not measured: a clock too coarse, or a value filled in.
    """
    if len(table) > 1 and np.ptp(table.times_us) == 0:
        return f"all {len(table)} workloads took exactly {table.times_us[0]:g} µs, expected times that differ"
    return ""


def outliers(table: Table, held_out_us: Array) -> tuple[int, ...]:
    """Numbers of the rows that a regressor does not follow, as they lie far outside the spread of the others.

    The farthest first. A collective's rows are compared within their layout.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        off = np.nan_to_num(np.log(held_out_us / table.times_us), nan=np.inf, posinf=np.inf, neginf=-np.inf)
    limits = np.empty(len(off))
    for own in [table.in_layout(layout) for layout in table.layouts] or [np.ones(len(off), dtype=bool)]:
        limits[own] = max(_FARTHEST * 1.4826 * float(np.median(np.abs(off[own]))), np.log(1 + _LEAST_ERROR))
    found = np.flatnonzero(np.abs(off) > limits)
    return tuple(int(row) for row in sorted(found, key=lambda row: (-abs(off[row]), row)))
