"""The occurrences of operators in a trace, and the kernels that belong to none.

An occurrence lasts from its earliest kernel's start to its latest kernel's end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from kernelcast.collector.ingest.kernel_columns import Pieces, Rows, distinct
from kernelcast.collector.ingest.recognised_calls import RecognisedCall, Unrecognised
from kernelcast.collector.traces.arguments import shapes_text
from kernelcast.collector.traces.call_tree import CallTree
from kernelcast.collector.traces.events import Floats
from kernelcast.runtime.operators import Direction

_NO_DURATION = Unrecognised("took no time")
SampleKey = tuple[RecognisedCall, Direction]


class Occurrence(NamedTuple):
    """One execution of a recognised call, µs on the trace's clock."""

    start_us: float  # of the earliest kernel
    end_us: float  # of the latest kernel
    is_overlapped: bool  # kernels of other streams ran at the same time


@dataclass(frozen=True, slots=True)
class Occurrences(Sequence[Occurrence]):
    """Executions by start, as columns. Kernels of execution i are `rows[first[i] : first[i + 1]]`, by start."""

    start_us: Floats
    end_us: Floats
    is_overlapped: NDArray[np.bool_]
    rows: Rows
    first: Rows  # one more than executions

    def __len__(self) -> int:
        return len(self.start_us)

    @overload
    def __getitem__(self, index: int) -> Occurrence: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Occurrence]: ...
    def __getitem__(self, index: int | slice) -> Occurrence | Sequence[Occurrence]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return Occurrence(self.start_us.item(index), self.end_us.item(index), self.is_overlapped.item(index))


class UnrecognisedGroup(NamedTuple):
    """Unattributed kernels of one kind; `shapes` are the inputs of `host_operator`."""

    name: str
    category: str
    stream: int
    host_operator: str
    shapes: str
    reason: str


def _nowhere() -> Rows:
    return np.empty(0, dtype=np.intp)


@dataclass(slots=True)
class Extracted:
    """Attributed kernels of a trace, with counts and times (µs)."""

    tree: CallTree
    is_device: bool = True
    pieces: Pieces = field(default_factory=Pieces)
    sample: Rows = field(
        default_factory=_nowhere
    )  # of every kernel, the position of its key in `points`, -1 for none,
    repetition: Rows = field(default_factory=_nowhere)  # and of its occurrence
    points: dict[SampleKey, Occurrences] = field(default_factory=dict)
    left: Mapping[UnrecognisedGroup, tuple[int, float]] = field(default_factory=dict)
    count: int = 0
    total_us: float = 0.0
    attributed_count: int = 0
    attributed_us: float = 0.0
    recognised_count: int = 0
    recognised_us: float = 0.0


def added_up(tree: CallTree, pieces: Pieces, *, is_device: bool) -> Extracted:
    """Collect attributed kernels into occurrences and unrecognised groups; streams of a device run concurrently."""
    tree.forget_launches()  # every kernel has its call by now
    rows, first, keys, key = _occurrences(pieces)
    start_us, end_us = _spans(pieces, rows, first)
    number = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(rows))))  # occurrence of every row
    is_overlapped = np.zeros(len(first), dtype=bool)
    if is_device:
        is_overlapped = _overlapped(pieces, rows, number, start_us, end_us)
    has_call, recognised_us = pieces.call >= 0, pieces.duration_us[rows]
    done = Extracted(
        tree,
        is_device,
        pieces,
        np.full(len(pieces), -1),
        np.full(len(pieces), -1),
        count=len(pieces),
        total_us=float(pieces.duration_us.sum()),
        attributed_count=int(np.count_nonzero(has_call)),
        attributed_us=float(pieces.duration_us[has_call].sum()),
        recognised_count=len(rows),
        recognised_us=float(recognised_us.sum()),
    )
    borders = np.append(
        np.flatnonzero(np.append(True, np.diff(key) != 0)) if len(key) else [], len(key)
    ).astype(int)
    for place, (begin, end) in enumerate(zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True)):
        from_row, to_row = np.append(first, len(rows))[[begin, end]].tolist()
        own = rows[from_row:to_row]
        done.sample[own], done.repetition[own] = place, number[from_row:to_row] - begin
        done.points[keys[key[begin]]] = Occurrences(
            start_us[begin:end], end_us[begin:end], is_overlapped[begin:end], own,
            np.append(first[begin:end], to_row) - from_row,
        )  # fmt: skip
    done.left = _left(tree, pieces, np.flatnonzero(done.sample < 0))
    return done


def _occurrences(pieces: Pieces) -> tuple[Rows, Rows, Sequence[SampleKey], Rows]:
    """Kernels in order of key, occurrence and start; where each occurrence begins; the keys, and each occurrence's.

    Keys come in order of their first occurrences. An occurrence has the key of its first kernel.
    """
    numbers: dict[SampleKey, int] = {}
    directions: dict[Direction, int] = {}
    of_place = np.array(
        [
            (numbers.setdefault((place.found, place.direction), len(numbers))
             if isinstance(place.found, RecognisedCall) else -1,
             directions.setdefault(place.direction, len(directions)))
            for place in pieces.places
        ], dtype=np.intp,
    ).reshape(-1, 2)  # fmt: skip
    rows = np.flatnonzero(of_place[pieces.place, 0] >= 0)
    found, number = distinct(pieces.instance[rows], of_place[pieces.place[rows], 1])
    order = np.argsort(number, kind="stable")
    rows, number = rows[order], number[order]
    first = np.searchsorted(number, np.arange(len(found)))
    start_us, end_us = _spans(pieces, rows, first)
    is_kept = end_us > start_us
    key = of_place[pieces.place[rows[first]], 0]
    # Those that took time, by key: then rows follow.
    kept = np.flatnonzero(is_kept)
    _, appearance = distinct(key[kept])
    order = kept[np.argsort(appearance, kind="stable")]
    place = np.full(len(first), -1)
    place[order] = np.arange(len(order))
    rows = rows[is_kept[number]]
    by_place = np.sort(place[number[is_kept[number]]])
    rows = rows[np.argsort(place[number[is_kept[number]]], kind="stable")]
    return rows, np.searchsorted(by_place, np.arange(len(order))), list(numbers), key[order]


def _spans(pieces: Pieces, rows: Rows, first: Rows) -> tuple[Floats, Floats]:
    """Start of the first and end of the last kernel of every occurrence."""
    if not len(first):
        return np.empty(0), np.empty(0)
    return pieces.start_us[rows[first]], np.maximum.reduceat(pieces.end_us[rows], first)


def _left(tree: CallTree, pieces: Pieces, rows: Rows) -> Mapping[UnrecognisedGroup, tuple[int, float]]:
    """Number and time of kernels `rows`, which are part of no occurrence."""
    reasons: dict[str, int] = {}
    texts = [
        place.found.reason if isinstance(place.found, Unrecognised) else _NO_DURATION.reason
        for place in pieces.places
    ]
    reason = np.array([reasons.setdefault(text, len(reasons)) for text in texts], dtype=np.intp)
    call = pieces.call[rows]
    columns = [np.where(call < 0, -1, column[call]) if len(column) else call for column in
               (tree.calls.kind, tree.calls.arguments)]  # fmt: skip
    first, number = distinct(pieces.kind[rows], pieces.stream[rows], reason[pieces.place[rows]], *columns)
    counts, totals_us = np.bincount(number), np.bincount(number, weights=pieces.duration_us[rows])
    found: dict[UnrecognisedGroup, tuple[int, float]] = {}
    for row, count, total_us in zip(rows[first].tolist(), counts.tolist(), totals_us.tolist(), strict=True):
        piece, name, listed = pieces[row], "", ""
        if piece.call is not None:
            name, listed = tree.names[piece.call], shapes_text(tree.arguments[piece.call].dims)
        group = UnrecognisedGroup(
            piece.name, piece.category, piece.stream, name, listed, texts[pieces.place.item(row)]
        )
        known = found.get(group, (0, 0.0))
        found[group] = known[0] + count, known[1] + total_us
    return found


def _overlapped(
    pieces: Pieces, rows: Rows, number: Rows, start_us: Floats, end_us: Floats
) -> NDArray[np.bool_]:
    """During which occurrences another stream was busy; kernels of one stream run one after another."""
    is_overlapped = np.zeros(len(start_us), dtype=bool)
    for stream in np.unique(pieces.stream).tolist():
        own = pieces.stream == stream  # by start time, as the trace's events are
        last = np.searchsorted(pieces.start_us[own], end_us) - 1
        is_busy = (last >= 0) & (np.maximum.accumulate(pieces.end_us[own])[last] > start_us)
        is_busy[number[pieces.stream[rows] == stream]] = False
        is_overlapped |= is_busy
    return is_overlapped
