"""Where an operator was not measured: what is asked instead, and said so.

An elementwise operator that the paper's table lacks takes as long as a residual addition that moves as much: both wait
for memory. Imported data rarely has the one and always the other.

Of collectives, the same of the other group serves: tensor and data parallelism call the same routine, on other sizes.
So does half of an all-reduce: a ring all-reduce is a reduce-scatter followed by an all-gather of the same data
(Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009, doi 10.1016/j.jpdc.2008.09.002).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

from kernelcast.runtime.bundle.regressor_entry import Key, RegressorEntry
from kernelcast.runtime.operators import OPERATORS, Direction, Operator, OperatorClass

_ELEMENTWISE = "residual_add"
_ROWS = ("rows", "columns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitute:
    """`operator` is answered by `source`: its time at the same data, times `factor`.

    `gathers` says that the vector counts one process's shard, while `source` counts the whole. An elementwise
    operator is answered by `alike`, a workload of `source` that moves about as much; `factor` is the rest.
    """

    operator: str
    source: str
    factor: float
    gathers: bool = False
    alike: tuple[int, ...] = ()

    def vector(self, asked: tuple[int, ...]) -> tuple[int, ...]:
        """The workload vector that `source` is asked for; of collectives [entries, nodes, gpus_per_node]."""
        if self.alike:
            return self.alike
        entries, nodes, gpus_per_node = asked
        return (entries * nodes * gpus_per_node if self.gathers else entries, nodes, gpus_per_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubstituteWarning:
    """An operator that the bundle does not have was answered by another."""

    operator: str
    source: str
    factor: float
    direction: Direction = Direction.ONCE

    @classmethod
    def of(cls, found: Substitute, direction: Direction) -> Self:
        """What is said of a substitute; the factor that makes an elementwise one move as much goes without saying."""
        factor = 1.0 if found.alike else found.factor
        return cls(operator=found.operator, source=found.source, factor=factor, direction=direction)

    def __str__(self) -> str:
        share = "" if self.factor == 1 else "half of "
        size = "of the same size" if self.direction is Direction.ONCE else "moving as much memory"
        return (
            f"{self.operator} ({self.direction}): not in the bundle, answered by {share}{self.source} {size}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "operator": self.operator,
            "direction": self.direction.value,
            "kind": "substitute",
            "source": self.source,
            "factor": self.factor,
            "message": str(self),
        }


def substitute(
    operator: str,
    vector: tuple[int, ...],
    entries: Mapping[Key, RegressorEntry],
    direction: Direction = Direction.ONCE,
) -> Substitute | None:
    """What answers for `operator`, a reduce-scatter or all-gather or elementwise one that `entries` lack; else None.

    Of several that could, the one whose training comes nearest to what it would be asked: a layout that was
    measured before one that was not, then the least distance beyond the trained sizes. Equally near, the same
    collective goes before half an all-reduce.
    """
    if (operator, direction) in entries:
        return None
    if direction is not Direction.ONCE:
        return _moving_alike(operator, direction, vector, entries)
    there = [one for one in _candidates(operator) if (one.source, Direction.ONCE) in entries]
    return min(there, key=lambda one: _beyond(one, vector, entries), default=None)


def is_answered_alike(row: Operator, entries: Collection[Key]) -> bool:
    """Whether a supplementary operator can be answered by another of `entries` that moves as much."""
    is_elementwise = row.operator_class is OperatorClass.MEMORY and tuple(row.features) == _ROWS
    return (
        row.supplementary and is_elementwise and all((_ELEMENTWISE, one) in entries for one in row.directions)
    )


def _moving_alike(
    operator: str, direction: Direction, vector: tuple[int, ...], entries: Mapping[Key, RegressorEntry]
) -> Substitute | None:
    row, source = OPERATORS[operator], OPERATORS[_ELEMENTWISE]
    if not is_answered_alike(row, entries):
        return None
    moved = row.moved_bytes(direction, vector, 1)
    per_element = source.moved_bytes(direction, (1,) * len(source.features), 1)
    alike = _within(entries[_ELEMENTWISE, direction].training_range, moved / per_element)
    factor = moved / source.moved_bytes(direction, alike, 1)
    return Substitute(operator=operator, source=_ELEMENTWISE, factor=factor, alike=alike)


def _within(ranges: Sequence[tuple[float, float]], elements: float) -> tuple[int, ...]:
    """A workload inside the trained ranges whose features multiply to about `elements`."""
    lows = [math.log(max(1.0, low)) for low, _ in ranges]
    spans = [math.log(max(1.0, high)) - low for (_, high), low in zip(ranges, lows, strict=True)]
    wanted = math.log(max(1.0, elements)) - sum(lows)
    share = min(1.0, max(0.0, wanted / sum(spans))) if sum(spans) > 0 else 0.0
    return tuple(round(math.exp(low + share * span)) for low, span in zip(lows, spans, strict=True))


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
    other = {"tp": "dp", "dp": "tp"}[group]
    gathers = collective == "all_gather"
    return (
        Substitute(operator=operator, source=f"{other}_{collective}", factor=1.0, gathers=False),
        Substitute(operator=operator, source=f"{group}_all_reduce", factor=0.5, gathers=gathers),
        Substitute(operator=operator, source=f"{other}_all_reduce", factor=0.5, gathers=gathers),
    )
