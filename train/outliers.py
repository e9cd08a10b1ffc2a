"""Rows that a regressor does not follow, because they lie far outside the spread of the others."""

import numpy as np

from kernelcast.runtime.operators import OPERATORS, OperatorClass
from kernelcast.train.dataset import Array, Table

# Robust standard deviations of log(held-out prediction / measured) within a layout or table.
_FARTHEST = 3.0
# Where nearly all rows agree, three deviations are next to nothing: smaller errors than these are no outliers.
_LEAST_ERROR = 0.2


def outliers(table: Table, held_out_us: Array) -> tuple[int, ...]:
    """Numbers of the rows, the farthest first. A collective's rows are compared within their layout."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        off = np.nan_to_num(np.log(held_out_us / table.times_us), nan=np.inf, posinf=np.inf, neginf=-np.inf)
    limits = np.empty(len(off))
    collective = OPERATORS[table.operator].operator_class is OperatorClass.COMMUNICATION
    groups = table.workloads[:, 1:] if collective else np.zeros((len(off), 1))
    for group in np.unique(groups, axis=0):
        own = (groups == group).all(axis=1)
        limits[own] = max(_FARTHEST * 1.4826 * float(np.median(np.abs(off[own]))), np.log(1 + _LEAST_ERROR))
    found = np.flatnonzero(np.abs(off) > limits)
    return tuple(int(row) for row in sorted(found, key=lambda row: (-abs(off[row]), row)))
