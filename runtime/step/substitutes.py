"""Where a collective was not measured for its own group: what is asked instead, and said so.

The same collective of the other group serves: tensor and data parallelism call the same routine, on other sizes. So
does half of an all-reduce: a ring all-reduce is a reduce-scatter followed by an
all-gather of the same data (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009, doi 10.1016/j.jpdc.2008.09.002).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kernelcast.runtime.bundle.regressor_entry import Key, RegressorEntry
from kernelcast.runtime.operators import Direction


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitute:
    """`operator` is answered by `source`: its time at the same data, times `factor`.

    `gathers` says that the vector counts one process's shard, while `source` counts the whole.
    """

    operator: str
    source: str
    factor: float
    gathers: bool

    def vector(self, asked: tuple[int, ...]) -> tuple[int, ...]:
        """The workload vector [entries, nodes, gpus_per_node] that `source` is asked for."""
        entries, nodes, gpus_per_node = asked
        return (entries * nodes * gpus_per_node if self.gathers else entries, nodes, gpus_per_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubstituteWarning:
    """An operator that the bundle does not have was answered by another."""

    operator: str
    source: str
    factor: float

    def __str__(self) -> str:
        share = "" if self.factor == 1 else "half of "
        return f"{self.operator} (once): not in the bundle, answered by {share}{self.source} of the same size"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "operator": self.operator,
            "direction": Direction.ONCE.value,
            "kind": "substitute",
            "source": self.source,
            "factor": self.factor,
            "message": str(self),
        }


def substitute(
    operator: str, vector: tuple[int, ...], entries: Mapping[Key, RegressorEntry]
) -> Substitute | None:
    """What answers for `operator`, a reduce-scatter or all-gather that `entries` lack; None for all others.

    Of several that could, the one whose training comes nearest to what it would be asked: a layout that was
    measured before one that was not, then the least distance beyond the trained sizes. Equally near, the same
    collective goes before half an all-reduce.
    """
    if (operator, Direction.ONCE) in entries:
        return None
    there = [one for one in _candidates(operator) if (one.source, Direction.ONCE) in entries]
    return min(there, key=lambda one: _beyond(one, vector, entries), default=None)


def _beyond(
    one: Substitute, asked: tuple[int, ...], entries: Mapping[Key, RegressorEntry]
) -> tuple[bool, float]:
    """Whether the layout was not measured, and how far the vector lies outside the trained range (logarithms)."""
    entry, vector = entries[one.source, Direction.ONCE], one.vector(asked)
    distance = 0.0
    for value, (low, high) in zip(vector, entry.training_range, strict=True):
        distance += math.log(max(1, low) / max(1, value)) if value < low else 0.0
        distance += math.log(max(1, value) / max(1, high)) if value > high else 0.0
    return bool(entry.layouts) and vector[1:] not in entry.layouts, distance


@lru_cache(maxsize=64)
def _candidates(operator: str) -> tuple[Substitute, ...]:
    group, _, collective = operator.partition("_")
    if collective not in ("all_gather", "reduce_scatter"):
        return ()
    other = {"mp": "dp", "dp": "mp"}[group]
    gathers = collective == "all_gather"
    return (
        Substitute(operator=operator, source=f"{other}_{collective}", factor=1.0, gathers=False),
        Substitute(operator=operator, source=f"{group}_all_reduce", factor=0.5, gathers=gathers),
        Substitute(operator=operator, source=f"{other}_all_reduce", factor=0.5, gathers=gathers),
    )
