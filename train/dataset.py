"""Samples of the store as arrays, one table per operator and direction."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernelcast.runtime.operators import Direction

Array = npt.NDArray[np.float64]
STATISTICS = ("quiet", "middle_five")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One time of one workload."""

    operator: str
    direction: Direction
    vector: tuple[int, ...]
    time_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All workloads of one operator and direction: `workloads` [rows, features], `times_us` [rows]."""

    operator: str
    direction: Direction
    workloads: Array
    times_us: Array

    def __len__(self) -> int:
        return len(self.times_us)


def tables(rows: Iterable[Row], *, statistic: str) -> list[Table]:
    """Group rows into tables, operators and workloads sorted, so that the order of the rows does not matter.

    A workload that was measured several times counts once: its quiet time is the lowest of the quiet ones (what
    disturbs only adds), its middle-five time the median.
    """
    grouped: dict[tuple[str, Direction], dict[tuple[int, ...], list[float]]] = {}
    for row in rows:
        grouped.setdefault((row.operator, row.direction), {}).setdefault(row.vector, []).append(row.time_us)
    return [
        Table(
            operator=operator,
            direction=direction,
            workloads=np.array(sorted(workloads), dtype=np.float64),
            times_us=np.array([_agreed_us(workloads[v], statistic) for v in sorted(workloads)]),
        )
        for (operator, direction), workloads in sorted(grouped.items())
    ]


def _agreed_us(times_us: Sequence[float], statistic: str) -> float:
    return min(times_us) if statistic == "quiet" else float(np.median(times_us))
