"""Times in a database for this hardware, software and dtype, as the chooser and the cost model need them."""

from collections.abc import Mapping, Sequence

import numpy as np

from kernelcast.runtime.hardware.load import Load
from kernelcast.runtime.operators import Key, Operator, Vector
from kernelcast.store import Database, Run
from kernelcast.train.dataset import Table

Times = dict[Key, dict[Vector, float]]
"""µs by operator and direction, then by workload vector."""


def stored_times(database: Database, run: Run, dtype: str, load: Load) -> Times:
    """Shortest quiet time of every workload measured under the conditions of `run` and under `load`, µs."""
    rows = database.read_samples(**run.measured_under, dtype=dtype, load=load)
    times: Times = {}
    for row in rows:
        time_us = row.quiet_us if row.quiet_us is not None else row.time_us
        if time_us is None:
            continue
        found = times.setdefault((row.operator, row.direction), {})
        found[row.vector] = min(time_us, found.get(row.vector, time_us))
    return times


def tables_of(op: Operator, times: Times, vectors: Sequence[Vector]) -> list[Table]:
    """A table per direction of an operator, over the workloads that are known in all directions."""
    per_direction: list[Mapping[Vector, float]] = [
        times.get((op.name, direction), {}) for direction in op.directions
    ]
    complete = [vector for vector in vectors if all(vector in found for found in per_direction)]
    if not complete:
        return []
    return [
        Table(
            operator=op.name,
            direction=direction,
            workloads=np.array(complete, dtype=np.float64),
            times_us=np.array([found[vector] for vector in complete]),
        )
        for direction, found in zip(op.directions, per_direction, strict=True)
    ]
