"""Events of a trace as columns: a trace has millions, and an object for each would be several times as large."""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events", "hpu_op"})
HOST_OPERATOR_CATEGORY = "cpu_op"
ANNOTATION_CATEGORY = "user_annotation"
SYNC_CATEGORY = "cuda_sync"
LAUNCH_CATEGORIES = frozenset(
    {"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "runtime", "driver", "xpu_runtime", "xpu_driver",
     "mtia_runtime", "privateuse1_runtime", "privateuse1_driver"}
)  # fmt: skip

PROFILERS_STEP = "ProfilerStep#"
NO_ID = -(2**63)
NO_ARGUMENTS = b"{}"
_AT_ONCE = 10_000

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Numbers = NDArray[np.int32]


class Event(NamedTuple):
    """One complete event. `raw_arguments` are those that this package uses, as JSON; the ids stand apart."""

    category: str
    name: str
    pid: int | str | None
    tid: int | str | None
    start_us: float
    duration_us: float
    raw_arguments: bytes = NO_ARGUMENTS
    external_id: int | None = None
    sequence_number: int | None = None
    correlation: int | None = None

    @property
    def thread(self) -> str:
        """The host thread or, for device events, the stream."""
        return f"{self.pid}/{self.tid}"

    @property
    def end_us(self) -> float:
        """End of the event, µs on the trace's clock."""
        return self.start_us + self.duration_us


@dataclass(frozen=True, slots=True)
class Texts:
    """What the numbers in the columns mean: each text once."""

    kinds: Sequence[tuple[str, str]] = ()  # category and name
    places: Sequence[tuple[int | str | None, int | str | None]] = ()  # pid and tid
    arguments: Sequence[bytes] = ()


def _none(kind: type[np.generic]) -> Callable[[], NDArray[Any]]:
    return lambda: np.empty(0, kind)


_NO_FLOATS, _NO_NUMBERS, _NO_INTEGERS = _none(np.float64), _none(np.int32), _none(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Events(Sequence[Event]):
    """Events in order; a slice, a mask or an array of positions gives those. Ids are `NO_ID` where missing."""

    texts: Texts = Texts()
    start_us: Floats = field(default_factory=_NO_FLOATS)
    duration_us: Floats = field(default_factory=_NO_FLOATS)
    kind: Numbers = field(default_factory=_NO_NUMBERS)  # of `texts`, as the next two
    place: Numbers = field(default_factory=_NO_NUMBERS)
    arguments: Numbers = field(default_factory=_NO_NUMBERS)
    external_id: Integers = field(default_factory=_NO_INTEGERS)
    sequence_number: Integers = field(default_factory=_NO_INTEGERS)
    correlation: Integers = field(default_factory=_NO_INTEGERS)

    def __len__(self) -> int:
        return len(self.start_us)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Events) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice | NDArray[Any]) -> "Events": ...
    def __getitem__(self, index: int | slice | NDArray[Any]) -> "Event | Events":
        if isinstance(index, int):
            return next(iter(self[np.array([index])]))
        columns = {name: getattr(self, name)[index] for name in COLUMNS}
        return replace(self, **columns)

    def __iter__(self) -> Iterator[Event]:
        texts = self.texts
        for first in range(0, len(self), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            kinds = [texts.kinds[number] for number in self.kind[part].tolist()]
            places = [texts.places[number] for number in self.place[part].tolist()]
            yield from map(
                Event,
                (category for category, _ in kinds),
                (name for _, name in kinds),
                (pid for pid, _ in places),
                (tid for _, tid in places),
                self.start_us[part].tolist(),
                self.duration_us[part].tolist(),
                map(texts.arguments.__getitem__, self.arguments[part].tolist()),
                *(
                    [None if value == NO_ID else value for value in column[part].tolist()]
                    for column in (self.external_id, self.sequence_number, self.correlation)
                ),
            )

    @property
    def end_us(self) -> Floats:
        """End of every event, µs on the trace's clock."""
        return self.start_us + self.duration_us

    def named(self) -> list[str]:
        """The name of every event."""
        return [self.texts.kinds[number][1] for number in self.kind.tolist()]

    def threads(self) -> list[str]:
        """The thread of every event, or its stream."""
        threads = [f"{pid}/{tid}" for pid, tid in self.texts.places]
        return [threads[number] for number in self.place.tolist()]

    def are(self, *categories: str) -> NDArray[np.bool_]:
        """Which events belong to the categories."""
        return self.where(lambda category, _: category in categories)

    def where(self, is_wanted: Callable[[str, str], bool]) -> NDArray[np.bool_]:
        """Which events' category and name are wanted; each pair is tested once."""
        wanted = np.array([is_wanted(category, name) for category, name in self.texts.kinds], dtype=bool)
        return wanted[self.kind]


COLUMNS = (
    "start_us", "duration_us", "kind", "place", "arguments", "external_id", "sequence_number",
    "correlation",
)  # fmt: skip


def microseconds(value: Any) -> float:
    """A time as written; NaN where it is no number, or out of range."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
        return float(value)
    return math.nan


def last_with(ids: Integers, wanted: Integers) -> NDArray[np.intp]:
    """The last position of every wanted id among `ids`, -1 where it is missing or `NO_ID`."""
    order = np.argsort(ids, kind="stable")
    place = np.searchsorted(ids[order], wanted, side="right") - 1
    if not len(ids):
        return place
    found = order[place]
    return np.where((place >= 0) & (ids[found] == wanted) & (wanted != NO_ID), found, -1)
