"""The measured samples nearest to what a prediction asked; needs the store."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelcast.runtime.estimate.explanation import Explanation
from kernelcast.store import Database, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """A sample with both statistics, and how far its workload is from the one asked."""

    vector: tuple[int, ...]
    distance: float
    time_us: float
    quiet_us: float
    hardware: str


def nearest_samples(
    path: Path, explanations: Sequence[Explanation], *, dtype: str, count: int
) -> list[list[Near]]:
    """For every explanation the `count` nearest samples of the regressor's operator and direction, nearest first.

    Raises:
        DataError: the database cannot be read.
    """
    found: list[list[Near]] = []
    with Database.open(path, read_only=True) as database:
        hardware = {row.id: row.description for row in database.hardware_list()}
        for one in explanations:
            rows = database.read_samples(
                operator=one.entry.operator, direction=one.direction, dtype=dtype, status=Status.OK
            )
            asked = [feature.value for feature in one.features]
            near = [
                Near(
                    vector=row.vector,
                    distance=log_distance(asked, row.vector),
                    time_us=row.time_us,
                    quiet_us=row.quiet_us if row.quiet_us is not None else row.time_us,
                    hardware=hardware[row.compute_id],
                )
                for row in rows
                if row.time_us is not None
            ]
            found.append(heapq.nsmallest(count, near, key=lambda sample: (sample.distance, sample.time_us)))
    return found


def log_distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Euclidean distance of the logarithms; entries below 1 count as 1."""
    return math.dist([math.log(max(1, v)) for v in one], [math.log(max(1, v)) for v in other])
