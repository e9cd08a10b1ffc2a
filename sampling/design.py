"""The next workloads of an operator: far from the measured ones, and where the committee disagrees."""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from kernelcast.sampling.committee import disagreement
from kernelcast.train.dataset import Array, Table

FIRST_ROWS = 12
"""Space-filling workloads before the committee decides."""

_LEAST_BATCH = 4
# A share of the measured rows, so that refits stay affordable: one for each twelfth more rows.
_BATCH_SHARE = 0.08
_CONSTANT = 1e-9  # the standard deviation of equal logarithms is seldom exactly 0
_DISAGREEMENT_FLOOR = 1e-3  # where all agree, distance decides


def positions(workloads: Array) -> Array:
    """Workloads as points: logarithms of the features that vary, each scaled to a standard deviation of 1."""
    logs = np.log(np.maximum(workloads, 1.0))
    logs = logs[:, logs.std(axis=0) > _CONSTANT]
    if not logs.shape[1]:
        return np.zeros((len(workloads), 1))
    scaled: Array = (logs - logs.mean(axis=0)) / logs.std(axis=0)
    return scaled


def space_filling(
    points: Array, measured: Sequence[int], count: int, *, weights: Array | None = None
) -> list[int]:
    """Indices of `count` points, each the farthest from all measured and chosen ones; `weights` scale distances."""
    chosen: list[int] = []
    taken = set(measured)
    if not taken:
        chosen.append(int(np.argmin(((points - points.mean(axis=0)) ** 2).sum(axis=1))))
        taken.add(chosen[0])
    distance = np.full(len(points), np.inf)
    for number in taken:
        distance = np.minimum(distance, ((points - points[number]) ** 2).sum(axis=1) ** 0.5)
    scale = np.ones(len(points)) if weights is None else weights
    while len(chosen) < count and len(taken) < len(points):
        score = scale * distance
        score[list(taken)] = -1.0
        best = int(np.argmax(score))
        chosen.append(best)
        taken.add(best)
        distance = np.minimum(distance, ((points - points[best]) ** 2).sum(axis=1) ** 0.5)
    return chosen[:count]


def batch_size(measured: int) -> int:
    """Workloads to measure between two refits of a committee, after `measured` ones."""
    return max(_LEAST_BATCH, round(_BATCH_SHARE * measured))


def next_workloads(
    workloads: Array,
    tables: Sequence[Table],
    measured: Sequence[int],
    count: int,
    rng: Generator,
    *,
    seconds: Array | None = None,
) -> list[int]:
    """Indices of the workloads [rows, features] to measure next.

    `tables` hold the known times, one per direction; `measured` are indices of known workloads. A workload's gain is
    the committee's disagreement there, averaged over the directions, times its distance to the measured workloads,
    divided by the `seconds` [rows] that measuring takes, where given.
    """
    points = positions(workloads)
    if len(measured) < FIRST_ROWS or not tables:
        return space_filling(points, measured, count)
    gain = sum(disagreement(table, workloads, rng) for table in tables) / len(tables)
    gain = np.maximum(gain, _DISAGREEMENT_FLOOR)
    return space_filling(points, measured, count, weights=gain if seconds is None else gain / seconds)


def subset(tables: Sequence[Table], rows: Sequence[int]) -> list[Table]:
    """The same rows of several tables."""
    return [table.part(np.asarray(rows, dtype=np.int64)) for table in tables]
