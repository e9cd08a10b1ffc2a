"""Samples of the store as arrays, one table per operator and direction."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low

import numpy as np
import numpy.typing as npt

from kernelcast.runtime.operators import OPERATORS, Direction, OperatorClass

Array = npt.NDArray[np.float64]
STATISTICS = ("quiet", "middle_five")
CONFLICT = 2.0
"""Times of one workload that are more than so many times apart contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One time of one workload."""

    operator: str
    direction: Direction
    vector: tuple[int, ...]
    time_us: float
    processes_per_node: int = 1


TableKey = tuple[str, Direction, int]
"""Operator, direction, and how many processes of a node ran it at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All workloads of one operator, direction and level: `workloads` [rows, features], `times_us` [rows]."""

    operator: str
    direction: Direction
    workloads: Array
    times_us: Array
    processes_per_node: int = 1

    @property
    def key(self) -> TableKey:
        """What tells it from the other tables of a training."""
        return self.operator, self.direction, self.processes_per_node

    def __len__(self) -> int:
        return len(self.times_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """`workloads` of an operator and direction have times that contradict each other, up to `factor` apart."""

    operator: str
    direction: Direction
    workloads: int
    factor: float
    worst_vector: tuple[int, ...]


def tables(rows: Iterable[Row], *, statistic: str) -> list[Table]:
    """Group rows into tables, operators and workloads sorted, so that the order of the rows does not matter.

    A workload that was measured several times counts once: its quiet time is the lowest of the quiet ones (what
    disturbs only adds), its middle-five time, or a collective's mean, the median. Where quiet ones contradict each
    other (`CONFLICT`), the lowest may be a measurement gone wrong: the middle one counts, of an even number the lower.
    """
    grouped = _grouped(rows)
    return [
        Table(
            operator=operator,
            direction=direction,
            workloads=np.array(sorted(workloads), dtype=np.float64),
            times_us=np.array(
                [
                    _agreed_us(workloads[v], lowest=_lowest_counts(operator, statistic))
                    for v in sorted(workloads)
                ]
            ),
            processes_per_node=processes,
        )
        for (operator, direction, processes), workloads in sorted(grouped.items())
    ]


def conflicts(rows: Iterable[Row]) -> list[Conflict]:
    """Operators and directions with workloads whose times are more than `CONFLICT` times apart."""
    found = []
    for (operator, direction, _), workloads in sorted(_grouped(rows).items()):
        factors = {vector: max(times) / min(times) for vector, times in sorted(workloads.items())}
        conflicting = [vector for vector, factor in factors.items() if factor > CONFLICT]
        if conflicting:
            worst = max(conflicting, key=factors.__getitem__)
            found.append(
                Conflict(
                    operator=operator,
                    direction=direction,
                    workloads=len(conflicting),
                    factor=factors[worst],
                    worst_vector=worst,
                )
            )
    return found


def _grouped(rows: Iterable[Row]) -> dict[TableKey, dict[tuple[int, ...], list[float]]]:
    grouped: dict[TableKey, dict[tuple[int, ...], list[float]]] = {}
    for row in rows:
        key = row.operator, row.direction, row.processes_per_node
        grouped.setdefault(key, {}).setdefault(row.vector, []).append(row.time_us)
    return grouped


def _lowest_counts(operator: str, statistic: str) -> bool:
    known = OPERATORS.get(operator)
    collective = known is not None and known.operator_class is OperatorClass.COMMUNICATION
    return statistic == "quiet" and not collective


def _agreed_us(times_us: Sequence[float], *, lowest: bool) -> float:
    if lowest:
        return min(times_us) if max(times_us) <= CONFLICT * min(times_us) else median_low(times_us)
    return float(np.median(times_us))
