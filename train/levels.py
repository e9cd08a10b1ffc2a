"""Operators measured with several processes per node at once, fitted with rows of the next lower level.

Concurrent operators take some percent longer, more where they move much memory: less than the noise of a shared
machine. So the rows of the lower level, scaled by the factor between both levels, may be fitted with a level's own
rows. Cross-validation decides whether that is better.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import theilslopes

from kernelcast.train.dataset import Array, Table

FEWEST_SHARED = 4
"""Fewest common workloads that give a factor."""
_FEWEST_FOR_SLOPE = 12


def base_of(table: Table, tables: Sequence[Table]) -> Table | None:
    """The table of the same operator and direction at the nearest lower level."""
    lower = [
        other
        for other in tables
        if (other.operator, other.direction) == (table.operator, table.direction)
        and other.processes_per_node < table.processes_per_node
    ]
    return max(lower, key=lambda other: other.processes_per_node, default=None)


def with_level_below(own: Table, base: Table, *, unseen: Array) -> Table:
    """Rows of `own` and, with enough common workloads, rows of `base` scaled to its level."""
    lower = scaled(base, own, unseen=unseen)
    if lower is None:
        return own
    return replace(
        own,
        workloads=np.concatenate([own.workloads, lower.workloads]),
        times_us=np.concatenate([own.times_us, lower.times_us]),
        role_times_us={},
    )


def scaled(base: Table, own: Table, *, unseen: Array) -> Table | None:
    """Rows of `base` scaled to the level of `own`; None with too few common workloads.

    `unseen` [rows, features] are the held-out workloads, which are left out of `base` too. The logarithm of the factor
    is a robust line over the logarithm of the base's time (Theil and Sen), or its median with few common workloads; it
    never leaves the range of the measured factors.
    """
    there, hidden = base.times_by_workload(), set(map(tuple, unseen.tolist()))
    both = [
        (there[vector], time_us) for vector, time_us in own.times_by_workload().items() if vector in there
    ]
    if len(both) < FEWEST_SHARED:
        return None
    logs = np.log(np.array(both))
    factors = logs[:, 1] - logs[:, 0]
    kept = np.array([tuple(workload) not in hidden for workload in base.workloads.tolist()])
    asked = np.log(base.times_us[kept])
    slope, middle = 0.0, float(np.median(factors))
    if len(both) >= _FEWEST_FOR_SLOPE:
        slope, middle, _, _ = map(float, theilslopes(factors, logs[:, 0]))
    log_factor = np.clip(middle + slope * asked, factors.min(), factors.max())
    return replace(own, workloads=base.workloads[kept], times_us=np.exp(asked + log_factor), role_times_us={})
