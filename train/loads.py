"""Bursts and sustained load: the times that a regressor is fitted to, and the ratio of both.

A training step is sustained load, so sustained times are fitted wherever there are enough of them. Neither is scaled to
the other: an operator measured in bursts only answers with bursts, and its entry names the load.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kernelcast.runtime.operators import Direction
from kernelcast.runtime.record import Record
from kernelcast.train.dataset import Table, TableKey
from kernelcast.train.notes import Note
from kernelcast.train.selection import why_unfit


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRatio(Record):
    """Ratio of times under sustained load to times in bursts, on the `workloads` measured both ways.

    `low` and `high` enclose 80 % of the workloads; 1.1 is 10 % longer.
    """

    operator: str
    direction: Direction
    processes_per_node: int
    workloads: int
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ByLoad:
    """One table to fit per operator, direction and level; `bursts` are the tables that a sustained one replaced.

    `ratios` compare both wherever both were measured, `notes` name sustained times that are too few to be fitted.
    """

    tables: tuple[Table, ...]
    bursts: dict[TableKey, Table]
    ratios: tuple[LoadRatio, ...]
    notes: tuple[Note, ...]


def by_load(tables: Iterable[Table]) -> ByLoad:
    """The sustained times of each operator, direction and level, else the bursts."""
    bursts: dict[TableKey, Table] = {}
    sustained: dict[TableKey, Table] = {}
    for table in tables:
        (sustained if table.load.is_sustained else bursts)[table.key] = table
    notes = []
    chosen = dict(bursts)
    for key, table in sustained.items():
        if key in bursts and (reason := why_unfit(table)):
            operator, direction, _ = key
            text = f"under sustained load {reason}: times of bursts answer"
            notes.append(Note(operator=operator, direction=direction, text=text))
        else:
            chosen[key] = table
    return ByLoad(
        tables=tuple(chosen[key] for key in sorted(chosen)),
        bursts={key: table for key, table in bursts.items() if chosen[key] is not table},
        ratios=tuple(load_ratios(bursts.values(), sustained)),
        notes=tuple(notes),
    )


def load_ratios(bursts: Iterable[Table], sustained: dict[TableKey, Table]) -> Sequence[LoadRatio]:
    """A ratio for every table of bursts with at least one workload that was measured under sustained load too."""
    found = []
    for burst in bursts:
        if burst.key not in sustained:
            continue
        there = sustained[burst.key].times_by_workload()
        ratios = [
            there[vector] / time_us
            for vector, time_us in burst.times_by_workload().items()
            if vector in there
        ]
        if ratios:
            low, median, high = map(float, np.quantile(ratios, [0.1, 0.5, 0.9]))
            operator, direction, processes = burst.key
            found.append(
                LoadRatio(
                    operator=operator,
                    direction=direction,
                    processes_per_node=processes,
                    workloads=len(ratios),
                    median=median,
                    low=low,
                    high=high,
                )
            )
    return found
