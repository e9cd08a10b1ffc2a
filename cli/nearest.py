"""The measured samples nearest to what a prediction asked; needs the store."""

import heapq
import math
from collections.abc import Sequence
from pathlib import Path

from kernelcast.cli.explain import NearSample
from kernelcast.runtime.estimate.explanation import Explanation
from kernelcast.store import Database, Status


def nearest_samples(
    path: Path, explanations: Sequence[Explanation], *, dtype: str, statistic: str, count: int
) -> list[tuple[NearSample, ...]]:
    """For every explanation the `count` nearest samples of the regressor's operator and direction, nearest first.

    Raises:
        DataError: the database cannot be read.
    """
    found = []
    with Database.open(path, read_only=True) as database:
        hardware = {row.id: row.description for row in database.hardware_list()}
        for one in explanations:
            rows = database.read_samples(
                operator=one.entry.operator, direction=one.direction, dtype=dtype, status=Status.OK
            )
            asked = [feature.value for feature in one.features]
            timed = [
                (log_distance(asked, row.vector), row.time_us, row) for row in rows if row.time_us is not None
            ]
            found.append(
                tuple(
                    NearSample(
                        vector=row.vector,
                        distance=distance,
                        time_us=row.quiet_us
                        if statistic == "quiet" and row.quiet_us is not None
                        else time_us,
                        hardware=hardware[row.compute_id],
                    )
                    for distance, time_us, row in heapq.nsmallest(count, timed, key=lambda sample: sample[:2])
                )
            )
    return found


def log_distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Euclidean distance of the logarithms; entries below 1 count as 1."""
    return math.dist([math.log(max(1, v)) for v in one], [math.log(max(1, v)) for v in other])
