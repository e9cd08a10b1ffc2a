"""How well a way to fit does beyond what it was fitted on: the largest quarter of each feature is held out in turn."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernelcast.train.dataset import Array

FEWEST_VALUES = 4
"""A feature with fewer distinct values has no largest quarter."""
_SHARE = 0.25

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarter:
    """Rows [rows] whose values of `features` (numbers; several where they move together) are the largest."""

    features: tuple[int, ...]
    rows: Mask


def largest_quarters(workloads: Array) -> tuple[Quarter, ...]:
    """The largest quarter by each feature that has enough values; at least one row is in it and one is not."""
    found: dict[bytes, Quarter] = {}
    for feature, values in enumerate(workloads.T):
        if len(np.unique(values)) < FEWEST_VALUES:
            continue
        rows = values > np.quantile(values, 1 - _SHARE, method="lower")
        if not rows.any():  # more than a quarter have the largest value
            rows = values == values.max()
        known = found.get(rows.tobytes())
        found[rows.tobytes()] = Quarter(features=(*(known.features if known else ()), feature), rows=rows)
    return tuple(found.values())
