"""The kernels of a trace as columns, with the call that each belongs to: a trace has millions of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelcast.collector.ingest.recognised_calls import Recognition
from kernelcast.collector.traces.arguments import Arguments
from kernelcast.collector.traces.events import Floats, Integers, Numbers
from kernelcast.runtime.operators import Direction

Rows = NDArray[np.intp]
_WIDEST = 1 << 62


class Launch(NamedTuple):
    """What a launch is recorded with; empty or None where it is not."""

    grid: str = ""  # JSON list of three
    block: str = ""
    registers: int | None = None  # of a thread
    occupancy_percent: float | None = None
    message_bytes: int | None = None  # of a copy or fill


class Place(NamedTuple):
    """Where a kernel belongs. `described` is the recorded metadata of a collective."""

    found: Recognition
    direction: Direction = Direction.FORWARD
    described: Arguments | None = None


class AttributedKernel(NamedTuple):
    """One kernel; on a CPU one call, whose self time `duration_us` is part of `end_us − start_us`."""

    name: str
    category: str
    start_us: float
    end_us: float
    stream: int
    device: int
    call: int | None  # index of the call on the host
    launch_us: float | None
    launch: Launch | None
    found: Recognition
    direction: Direction
    described: Arguments | None


def _none(kind: type[np.generic]) -> Callable[[], NDArray[Any]]:
    return lambda: np.empty(0, kind)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Kernels by start, as columns [kernels]; times in µs. Kernels of one instance and direction are one occurrence."""

    kinds: Sequence[tuple[str, str]] = ()  # category and name
    launches: Sequence[Launch | None] = ()
    places: Sequence[Place] = ()
    kind: Numbers = field(default_factory=_none(np.int32))  # of `kinds`
    launch: Numbers = field(default_factory=_none(np.int32))
    place: Numbers = field(default_factory=_none(np.int32))
    start_us: Floats = field(default_factory=_none(np.float64))
    duration_us: Floats = field(default_factory=_none(np.float64))
    end_us: Floats = field(default_factory=_none(np.float64))
    launch_us: Floats = field(default_factory=_none(np.float64))  # NaN where it is not recorded
    stream: Integers = field(default_factory=_none(np.int64))
    device: Integers = field(default_factory=_none(np.int64))
    call: Numbers = field(default_factory=_none(np.int32))  # -1 for none
    correlation: Integers = field(default_factory=_none(np.int64))  # `NO_ID` for none
    instance: Numbers = field(default_factory=_none(np.int32))

    def __len__(self) -> int:
        return len(self.start_us)

    def __getitem__(self, row: int) -> AttributedKernel:
        category, name = self.kinds[self.kind[row]]
        call, launch_us = self.call.item(row), self.launch_us.item(row)
        return AttributedKernel(
            name, category, self.start_us.item(row), self.end_us.item(row), self.stream.item(row),
            self.device.item(row), None if call < 0 else call, None if launch_us != launch_us else launch_us,
            self.launches[self.launch[row]], *self.places[self.place[row]],
        )  # fmt: skip

    def by_start(self) -> "Pieces":
        """The same kernels ordered by start."""
        order = np.argsort(self.start_us, kind="stable")
        return replace(self, **{name: getattr(self, name)[order] for name in _COLUMNS})


_COLUMNS = (
    "kind", "launch", "place", "start_us", "duration_us", "end_us", "launch_us", "stream", "device", "call",
    "correlation", "instance",
)  # fmt: skip


class Places:
    """Numbers of places; equal ones that are the same objects share a number."""

    def __init__(self) -> None:
        self.listed: list[Place] = []
        self._numbers: dict[tuple[int, int, int], int] = {}

    def number(self, found: Recognition, direction: Direction, described: Arguments | None = None) -> int:
        """The number of a place; its objects are kept, so that their identities stay theirs."""
        key = id(found), id(direction), id(described)
        if (number := self._numbers.get(key)) is None:
            number = self._numbers[key] = len(self.listed)
            self.listed.append(Place(found, direction, described))
        return number


def distinct(*columns: NDArray[Any]) -> tuple[Rows, Rows]:
    """The first row of every combination of whole numbers, in order of appearance, and its number for every row."""
    code, size = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        low, count = int(column.min(initial=0)), int(column.max(initial=0)) - int(column.min(initial=0)) + 1
        if size * count > _WIDEST:
            (_, code), (_, column) = (np.unique(one, return_inverse=True) for one in (code, column))
            size, low, count = int(code.max(initial=0)) + 1, 0, int(column.max(initial=0)) + 1
        code = code * count + (column.astype(np.int64) - low)
        size *= count
    _, first, number = np.unique(code, return_index=True, return_inverse=True)
    place = np.empty(len(first), dtype=np.intp)
    place[np.argsort(first)] = np.arange(len(first))
    return np.sort(first), place[number]
