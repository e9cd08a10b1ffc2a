"""Rows of measurements as arrays: one table per operator, direction, level of processes per node, and load."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import Self

import numpy as np
import numpy.typing as npt

from kernelcast.runtime.hardware.devices import Load
from kernelcast.runtime.operators import OPERATORS, Direction, Operator, Vector

Array = npt.NDArray[np.float64]
Layout = tuple[int, int]
"""Nodes, GPUs per node."""
CONFLICT = 2.0
"""Times of one workload that differ by more than this factor conflict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One time of one workload, measured in a role ("" for none in particular)."""

    operator: str
    direction: Direction
    vector: Vector
    time_us: float
    role: str = ""
    processes_per_node: int = 1
    load: Load = Load.NOT_STATED
    run_id: str = ""
    origin: str = ""  # merge that brought it; empty for the database's own


TableKey = tuple[str, Direction, int]
"""Operator, direction, and how many processes of a node ran it at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All workloads of one operator, direction and level: `workloads` [rows, features], `times_us` [rows].

    `role_times_us` holds the times per role, [rows] each, NaN where a workload was not measured in it. Workloads of
    several roles are one row: the operator is one law, whatever calls it.
    """

    operator: str
    direction: Direction
    workloads: Array
    times_us: Array
    role_times_us: Mapping[str, Array] = field(default_factory=dict)
    processes_per_node: int = 1
    load: Load = Load.NOT_STATED  # of all its rows

    @property
    def key(self) -> TableKey:
        """Its identity among the tables of a training with the same kind of load."""
        return self.operator, self.direction, self.processes_per_node

    @property
    def law(self) -> Operator:
        return OPERATORS[self.operator]

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Layouts that a collective was measured in, sorted; empty for other operators."""
        if not self.law.is_collective:
            return ()
        return tuple(sorted({(int(nodes), int(gpus)) for nodes, gpus in self.workloads[:, -2:]}))

    def in_layout(self, layout: Layout) -> npt.NDArray[np.bool_]:
        """Which rows of a collective have a layout, [rows]."""
        rows: npt.NDArray[np.bool_] = (self.workloads[:, -2:] == layout).all(axis=1)
        return rows

    def part(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Self:
        return replace(
            self,
            workloads=self.workloads[rows],
            times_us=self.times_us[rows],
            role_times_us={role: times_us[rows] for role, times_us in self.role_times_us.items()},
        )

    def times_by_workload(self) -> dict[tuple[float, ...], float]:
        """Time in µs by workload."""
        return dict(zip(map(tuple, self.workloads.tolist()), self.times_us.tolist(), strict=True))

    def by_role(self, errors: Array) -> dict[str, float]:
        """Mean of errors [rows] per role, over the rows measured in it."""
        return {
            role: float(errors[measured].mean())
            for role, times_us in self.role_times_us.items()
            if (measured := np.isfinite(times_us)).any()
        }

    def __len__(self) -> int:
        return len(self.times_us)


def aligned(several: Sequence[Table]) -> list[Table]:
    """The tables cut to the workloads they have in common, in one order."""
    rows = [{tuple(row): n for n, row in enumerate(table.workloads.tolist())} for table in several]
    common = sorted(set.intersection(*map(set, rows)))
    return [
        table.part(np.array([known[row] for row in common], dtype=np.int64))
        for table, known in zip(several, rows, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRange:
    """[minimum, maximum] of each feature; of the elements of an elementwise operator (else None); layouts."""

    operator: str
    features: tuple[str, ...]
    training_range: tuple[tuple[float, float], ...]
    elements_range: tuple[float, float] | None
    layouts: tuple[Layout, ...]

    @classmethod
    def of(cls, table: Table) -> Self:
        lows, highs = table.workloads.min(axis=0).tolist(), table.workloads.max(axis=0).tolist()
        elements = None
        if table.law.is_elementwise:
            moved = [table.law.elements(workload) for workload in table.workloads.tolist()]
            elements = (min(moved), max(moved))
        return cls(
            operator=table.operator,
            features=tuple(table.law.features),
            training_range=tuple(zip(lows, highs, strict=True)),
            elements_range=elements,
            layouts=table.layouts,
        )


def tables(rows: Iterable[Row], *, statistic: str) -> list[Table]:
    """Group rows into tables, operators and workloads sorted, so that the order of the rows does not matter.

    Times under sustained load are a table of their own; times without a stated load count as bursts.

    Repeated measurements of a workload count once. A run counts by its lowest quiet time (disturbances only add; where
    they conflict (`CONFLICT`), the lowest may be a failed measurement, and the lower median counts), an origin by the
    median over its runs, or over all middle-five times and means of collectives. Over origins the median counts, the
    database's own twice: one merge cannot move a time that was measured here.
    """
    found = []
    for (operator, direction, processes, _), measured in sorted(by_workload(rows).items()):
        lowest = statistic == "quiet" and not OPERATORS[operator].is_collective
        vectors = sorted(measured)
        roles = sorted({row.role for own in measured.values() for row in own})
        loads = {row.load for own in measured.values() for row in own}
        found.append(
            Table(
                operator=operator,
                direction=direction,
                workloads=np.array(vectors, dtype=np.float64),
                times_us=np.array([_agreed_us(measured[v], lowest=lowest) for v in vectors]),
                role_times_us={
                    role: np.array(
                        [
                            _agreed_us([r for r in measured[v] if r.role == role], lowest=lowest)
                            for v in vectors
                        ]
                    )
                    for role in roles
                },
                processes_per_node=processes,
                load=loads.pop() if len(loads) == 1 else Load.NOT_STATED,
            )
        )
    return found


def by_workload(rows: Iterable[Row]) -> dict[tuple[str, Direction, int, bool], dict[Vector, list[Row]]]:
    """Rows by table and workload; the key ends with whether the load was sustained."""
    grouped: dict[tuple[str, Direction, int, bool], dict[Vector, list[Row]]] = {}
    for row in rows:
        key = row.operator, row.direction, row.processes_per_node, row.load.is_sustained
        grouped.setdefault(key, {}).setdefault(row.vector, []).append(row)
    return grouped


def by_run(rows: Iterable[Row]) -> dict[tuple[str, str], list[float]]:
    """Times by origin and run, sorted by them."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in sorted(rows, key=lambda row: (row.origin, row.run_id)):
        found.setdefault((row.origin, row.run_id), []).append(row.time_us)
    return found


def _agreed_us(rows: Sequence[Row], *, lowest: bool) -> float:
    """One time for several rows; NaN without any."""
    if not rows:
        return float("nan")
    of_origins: dict[str, list[float]] = {}
    for (origin, _), times_us in by_run(rows).items():
        if lowest:
            conflict = max(times_us) > CONFLICT * min(times_us)
            times_us = [median_low(times_us) if conflict else min(times_us)]
        of_origins.setdefault(origin, []).extend(times_us)
    agreed = {origin: float(np.median(times_us)) for origin, times_us in of_origins.items()}
    return float(np.median([*agreed.values(), *([agreed[""]] if "" in agreed else [])]))
