"""What the rows of an operator leave doubtful: said by name beside the errors, never passed over in silence."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kernelcast.runtime.operators import OPERATORS, Direction, OperatorClass
from kernelcast.train.dataset import Conflict, Row, Table, conflicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something to know about an operator's rows, or why they are not fitted."""

    operator: str
    direction: Direction
    text: str


def constant_times(table: Table) -> str:
    """Why a table cannot be fitted because all its times are equal; empty where they are not.

    Work of different sizes that takes exactly as long was not measured: a clock too coarse, or a value filled in.
    """
    if len(table) > 1 and np.ptp(table.times_us) == 0:
        return f"all {len(table)} workloads took exactly {table.times_us[0]:g} µs, expected times that differ"
    return ""


def notes_on(rows: Iterable[Row], tables: Iterable[Table]) -> tuple[Note, ...]:
    """Notes on rows of one workload that contradict each other, and on collectives measured in one layout only."""
    found = [
        Note(operator=conflict.operator, direction=conflict.direction, text=_conflict(conflict))
        for conflict in conflicts(rows)
    ]
    for table in tables:
        layouts = np.unique(table.workloads[:, 1:], axis=0)
        if OPERATORS[table.operator].operator_class is OperatorClass.COMMUNICATION and len(layouts) == 1:
            nodes, gpus = layouts[0].astype(int)
            text = f"measured on {nodes} × {gpus} processes only: times of other layouts are guesses"
            found.append(Note(operator=table.operator, direction=table.direction, text=text))
    return tuple(found)


def _conflict(conflict: Conflict) -> str:
    vector = ", ".join(map(str, conflict.worst_vector))
    return (
        f"{conflict.workloads} workloads were measured several times with times up to {conflict.factor:.3g}× apart "
        f"(worst: [{vector}]); the middle one counts"
    )
