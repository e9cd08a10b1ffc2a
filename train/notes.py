"""Doubtful rows: conflicting times, equal times, outliers."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kernelcast.runtime.operators import Direction
from kernelcast.store import SampleRow
from kernelcast.store.doubts import NOTED
from kernelcast.train.dataset import CONFLICT, Array, Row, Table, by_run, by_workload

# Robust standard deviations of log(held-out prediction / measured) within a layout or table.
_FARTHEST = 3.0
# Errors below are no outliers even where nearly all rows agree and three deviations are next to nothing.
_LEAST_ERROR = 0.2
_RUNS_AGREE = 0.1  # of a workload's time


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something to know about the rows of an operator and direction, or why they train nothing."""

    operator: str
    direction: Direction
    text: str

    def __str__(self) -> str:
        return f"{self.operator} ({self.direction}): {self.text}"


def notes_on(rows: Iterable[Row], tables: Iterable[Table]) -> tuple[Note, ...]:
    """Notes on conflicting times, on merged rows, and on collectives measured in one layout only."""
    rows = list(rows)
    found = [*conflict_notes(rows), *_run_notes(rows)]
    for table in tables:
        if len(table.layouts) == 1:
            [(nodes, gpus)] = table.layouts
            text = f"measured on {nodes} × {gpus} processes only: times of other layouts are extrapolated"
            found.append(Note(operator=table.operator, direction=table.direction, text=text))
    return tuple(found)


def conflict_notes(rows: Iterable[Row]) -> Iterator[Note]:
    """A note per operator and direction with workloads whose times differ by more than `CONFLICT`."""
    for (operator, direction, _, _), measured in sorted(by_workload(rows).items()):
        times_us = {vector: [row.time_us for row in own] for vector, own in sorted(measured.items())}
        factors = {vector: max(own) / min(own) for vector, own in times_us.items()}
        conflicting = [vector for vector, factor in factors.items() if factor > CONFLICT]
        if conflicting:
            worst = max(conflicting, key=factors.__getitem__)
            text = (
                f"{len(conflicting)} workloads were measured several times with times up to {factors[worst]:.3g}× "
                f"apart (worst: [{', '.join(map(str, worst))}]); the median counts"
            )
            yield Note(operator=operator, direction=direction, text=text)


def _run_notes(rows: Iterable[Row]) -> Iterator[Note]:
    """Notes on workloads whose runs differ, and on rows that merges brought: whose rows they are."""
    for (operator, direction, _, _), measured in sorted(by_workload(rows).items()):
        differing = []
        for vector, own in sorted(measured.items()):
            (least, fastest), *_, (most, slowest) = 2 * sorted(
                (min(us), run) for run, us in by_run(own).items()
            )
            if most > (1 + _RUNS_AGREE) * least:
                differing.append((most / least, vector, (least, fastest), (most, slowest)))
        if differing:
            factor, vector, *ends = max(differing)
            runs = " and ".join(f"{us:g} µs in run {run[:12]} {_of(origin)}" for us, (origin, run) in ends)
            text = (
                f"runs differ by more than {_RUNS_AGREE:.0%} at {len(differing)} workloads, by up to {factor:.3g}× "
                f"([{', '.join(map(str, vector))}]: {runs}); the median counts (runs of this database twice)"
            )
            yield Note(operator=operator, direction=direction, text=text)
        origins = Counter(row.origin for own in measured.values() for row in own)
        for origin in sorted(origins.keys() - {""}):
            text = f"{origins[origin]:,} of {origins.total():,} samples are {_of(origin)}"
            yield Note(operator=operator, direction=direction, text=text)


def _of(origin: str) -> str:
    return f"of merge {origin[:12]}" if origin else "of this database"


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


def constant_times(table: Table) -> str:
    """Why a table cannot be fitted because all its times are equal; empty where they differ.

    Equal times of different sizes are no measurements: the clock is too coarse, or a value was filled in.
    """
    if len(table) > 1 and np.ptp(table.times_us) == 0:
        return f"all {len(table)} workloads took exactly {table.times_us[0]:g} µs, expected times that differ"
    return ""


def outliers(table: Table, held_out_us: Array) -> tuple[int, ...]:
    """Numbers of the rows far outside the spread of the other rows' errors, the farthest first.

    A collective's rows are compared within their layout.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        off = np.nan_to_num(np.log(held_out_us / table.times_us), nan=np.inf, posinf=np.inf, neginf=-np.inf)
    limits = np.empty(len(off))
    for own in [table.in_layout(layout) for layout in table.layouts] or [np.ones(len(off), dtype=bool)]:
        limits[own] = max(_FARTHEST * 1.4826 * float(np.median(np.abs(off[own]))), np.log(1 + _LEAST_ERROR))
    found = np.flatnonzero(np.abs(off) > limits)
    return tuple(int(row) for row in sorted(found, key=lambda row: (-abs(off[row]), row)))
