"""Many layouts as one table of whole numbers, so that thousands are evaluated at once."""

from functools import reduce
from operator import mul
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.request.fields import (
    DEGREES,
    EXPERT_DEGREES,
    LAYOUT,
    REPLICATING,
    SEARCHED,
    Recompute,
    Schedule,
)
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS
from kernelcast.runtime.step.chunks import AS_SPLIT, with_ends

RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)

# "index" is where in the space: what breaks ties, whoever evaluates the layout. The ends are layers of the first and
# last chunk where a cut was chosen by time, else `AS_SPLIT`.
_ENDS = ("first_layers", "last_layers")
COLUMNS = ("index", *SEARCHED, *_ENDS)
OF_STAGES = (*DEGREES, *EXPERT_DEGREES, "schedule", "virtual_stages", *_ENDS)
"""Columns that decide which layers a stage holds, and how many devices hold the same."""
# What a column holds are positions in these; others hold the numbers themselves.
_VALUES: dict[str, tuple[Any, ...]] = {
    name: tuple(LAYOUT[name].kind.values) for name in SEARCHED if LAYOUT[name].kind.types != (int,)
}
_NUMBERS = tuple(name for name in SEARCHED if name not in ("schedule", "recompute"))
_COPIES, _PAIRS = (
    np.array([getattr(SCHEDULE_KINDS[one], name) for one in SCHEDULES], dtype=np.int64)
    for name in ("copies", "pairs")
)
_AT = {name: position for position, name in enumerate(COLUMNS)}


@dataclass(frozen=True, slots=True)
class Layouts:
    """Many layouts: `table` is int64 [layouts, `COLUMNS`], other fields are as in `like`; `layers` of a cut by time."""

    table: NDArray[np.int64]
    like: Parallelism
    layers: int = 0

    @classmethod
    def of(cls, layout: Parallelism) -> "Layouts":
        """A batch of one."""
        values = ((name, getattr(layout, name)) for name in SEARCHED)
        columns = (_VALUES[name].index(value) if name in _VALUES else value for name, value in values)
        return cls(np.array([[0, *columns, AS_SPLIT, AS_SPLIT]], dtype=np.int64), layout)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, column: str) -> NDArray[np.int64]:
        """One column, int64 [layouts], or what follows from several.

        "copies" counts the copies of the model in a pipeline; "pairs" is 1 if a schedule runs passes in pairs that
        exchange with experts.
        """
        if column == "copies":
            return _COPIES[self["schedule"]]
        if column == "pairs":
            return _PAIRS[self["schedule"]] * (self["ep"] > 1)
        return self.table[:, _AT[column]]

    @property
    def ends(self) -> NDArray[np.int64]:
        """Layers of the first and last chunk where a cut was chosen by time, else `AS_SPLIT`, int64 [2, layouts]."""
        return self.table[:, -len(_ENDS) :].T

    @property
    def as_one(self) -> Parallelism:
        """One layout whose chosen numbers are float64 [layouts], or floats of one: no product of sizes overflows."""
        numbers: dict[str, Any] = {name: self[name].astype(np.float64) for name in _NUMBERS}
        if len(self) == 1:
            numbers = {name: float(own[0]) for name, own in numbers.items()}
        return Parallelism.unchecked(self.like, **numbers)

    @property
    def devices(self) -> NDArray[np.int64]:
        """Devices of every layout, int64 [layouts]."""
        return reduce(mul, [self[name] for name in DEGREES])

    @property
    def replicas(self) -> NDArray[np.int64]:
        """Devices that hold the same parameters, int64 [layouts]."""
        return reduce(mul, [self[name] for name in REPLICATING], self["copies"])

    @property
    def are_sharded(self) -> NDArray[np.bool_]:
        """Whether blocks give their gradients away in every micro-batch (ZeRO-2 and 3), bool [layouts]."""
        return (self["zero"] >= 2) & (self.replicas > 1)

    def take(self, rows: NDArray[Any] | slice) -> "Layouts":
        """The layouts at `rows` (positions, a mask or a slice)."""
        return Layouts(self.table[rows], self.like, self.layers)

    def with_ends(self, ends: NDArray[np.int64], layers: int) -> "Layouts":
        """The same layouts of a model of `layers` with these layers on the first and last chunk, int64 [2, layouts]."""
        table = self.table.copy()
        table[:, -len(_ENDS) :] = ends.T
        return replace(self, table=table, layers=layers)

    def counts(self, row: int) -> tuple[int, ...] | None:
        """Layers of each chunk of the layout at `row` where they were chosen by time or given, else None."""
        first, last = self.ends[:, row].tolist()
        if first == AS_SPLIT:
            return self.like.layer_counts
        chunks = int(self["pp"][row] * self["virtual_stages"][row])
        return with_ends(self.layers, chunks, first, last)

    def parallelism(self, row: int) -> Parallelism:
        """The layout at `row`."""
        values: dict[str, Any] = dict(zip(COLUMNS, self.table[row].tolist(), strict=True))
        found = {name: _VALUES[name][values[name]] if name in _VALUES else values[name] for name in SEARCHED}
        found["layer_counts"] = self.counts(row)
        if found["layer_counts"] is None and self.like.layer_split == "balanced":
            found["layer_split"] = "even"  # nothing is gained by another cut, or none was looked for
        return Parallelism.unchecked(self.like, **found)

    def distinct(self, *columns: str) -> tuple["Layouts", NDArray[np.intp]]:
        """One layout for each distinct combination in `columns`, and for every layout which of them is its own.

        The second value is intp [layouts]: positions in the first.
        """
        if len(self) == 1:
            return self, np.zeros(1, dtype=np.intp)
        code = np.zeros(len(self), dtype=np.int64)
        radix = 1
        for name in columns:
            values = self[name]
            low = int(values.min(initial=0))
            width = int(values.max(initial=0)) - low + 1
            radix *= width
            if radix >= 2**63:
                return self._distinct_rows(columns)
            code = code * width + (values - low)
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        return self.take(first), inverse

    def _distinct_rows(self, columns: tuple[str, ...]) -> tuple["Layouts", NDArray[np.intp]]:
        # Too many combinations for one number each: slower, over rows.
        selected = np.stack([self[name] for name in columns], axis=1)
        _, first, inverse = np.unique(selected, axis=0, return_index=True, return_inverse=True)
        return self.take(first), inverse.reshape(-1)
