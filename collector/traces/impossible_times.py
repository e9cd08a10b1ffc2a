"""Which events have times that others of the same trace rule out.

The profiler numbers launches, steps, and the calls of a thread in order. A kernel starts after its launch; kernels of
a stream run in order of launch, one after another, and end before a later wait for the device does. What many events
of a trace do is its own way, such as a device's clock that runs ahead, or a stream that stands for several: only what
few do is impossible.
"""

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from kernelcast.collector.traces.events import (
    ANNOTATION_CATEGORY,
    DEVICE_CATEGORIES,
    HOST_OPERATOR_CATEGORY,
    LAUNCH_CATEGORIES,
    NO_ID,
    PROFILERS_STEP,
    Events,
    Floats,
    Integers,
    last_with,
)

_Rows = NDArray[np.intp]
_Mask = NDArray[np.bool_]

_FEW = 100  # at most one event in a hundred, or one
_RARE = 10_000  # rarer than once a step
# Recorded traces have their launches and kernels in order within 5 µs; kernels of a stream overlap by up to 13 µs.
_SLACK_US = 5e3
_OVERRUN_US = 1e3
_AFTER_HOST_US = 100e3  # recorded traces end with the host, which waits for the device
_SYNC = "DeviceSynchronize"
_LONGEST_KERNEL_US = 100e6
_UNUSUAL, _LONG_US = 1000, 10e3


def impossible(events: Events, order: _Rows) -> _Mask:
    """Which of `events[order]`, by start, are impossible: launches, marks of steps and calls in them, device events."""
    return _Times(events, order).found


class _Times:
    """Columns of all events in order, and those found so far; rows are positions in `order`."""

    def __init__(self, events: Events, order: _Rows) -> None:
        self._events, self._order = events, order
        self.found = np.zeros(len(order), dtype=bool)
        self._start_us, self._place = events.start_us[order], events.place[order]
        self._end_us = self._start_us + events.duration_us[order]
        self._ids = events.correlation[order]
        self._find_unordered(self._rows(*LAUNCH_CATEGORIES), self._ids)
        calls, numbers = self._rows(HOST_OPERATOR_CATEGORY), events.external_id[order]
        for place in np.unique(self._place[calls]).tolist():
            self._find_unordered(calls[self._place[calls] == place], numbers)
        self._find_steps()
        self._find_device_events()

    def _rows(self, *categories: str) -> _Rows:
        return np.flatnonzero(self._events.are(*categories)[self._order] & ~self.found)

    def _find_unordered(self, rows: _Rows, numbers: Integers) -> None:
        rows = rows[numbers[rows] != NO_ID]
        rows = rows[np.argsort(numbers[rows], kind="stable")]
        self.found[rows] = _out_of_order(self._start_us[rows])

    def _find_steps(self) -> None:
        """Marks out of order or around nothing, and calls that begin inside a mark and end after it."""
        calls, start_us, end_us = self._rows(HOST_OPERATOR_CATEGORY), self._start_us, self._end_us
        number = np.array([_number(*kind) for kind in self._events.texts.kinds])[
            self._events.kind[self._order]
        ]
        marks = np.flatnonzero(number >= 0)
        began_us = np.sort(start_us[np.concatenate([self._rows(*LAUNCH_CATEGORIES), calls])])
        is_empty = np.searchsorted(began_us, start_us[marks]) == np.searchsorted(began_us, end_us[marks])
        self.found[marks] = is_empty & ~is_empty.all()
        marks = marks[~self.found[marks]]
        by_number = marks[np.argsort(number[marks], kind="stable")]
        self.found[by_number] = _out_of_order(start_us[by_number])
        marks = marks[~self.found[marks]]
        for place in np.unique(self._place[marks]).tolist():
            own, inside = marks[self._place[marks] == place], calls[self._place[calls] == place]
            at = np.searchsorted(start_us[own], start_us[inside], side="right") - 1
            is_inside = (at >= 0) & (start_us[inside] < end_us[own[at]])
            self.found[inside] = _beyond(
                np.where(is_inside, end_us[inside] - end_us[own[at]], 0.0), _SLACK_US
            )

    def _find_device_events(self) -> None:
        start_us, end_us, launches = self._start_us, self._end_us, self._rows(*LAUNCH_CATEGORIES)
        rows = self._rows(*DEVICE_CATEGORIES)
        launch = last_with(self._ids[launches], self._ids[rows])
        launched, by = rows[launch >= 0], launches[launch[launch >= 0]]
        launched_us, blocked_us = np.full((2, len(start_us)), np.nan)
        launched_us[launched], blocked_us[launched] = start_us[by], end_us[by] - start_us[by]
        self.found[launched] = _beyond(launched_us[launched] - start_us[launched], _SLACK_US)
        is_collective = np.array(["ccl" in name.lower() for _, name in self._events.texts.kinds])
        may_wait = is_collective[self._events.kind[self._order]]
        if len({self._events.texts.places[place][0] for place in np.unique(self._place[rows]).tolist()}) == 1:
            # A host waits for one device; others may run on.
            syncs = launches[self._events.where(lambda _, name: name.endswith(_SYNC))[self._order[launches]]]
            done_us = np.append(end_us[syncs], np.inf)[
                np.searchsorted(start_us[syncs], launched_us[launched])
            ]
            self.found[launched] |= _beyond(end_us[launched] - done_us, _OVERRUN_US)
        if len(host := np.concatenate([launches, self._rows(HOST_OPERATOR_CATEGORY, ANNOTATION_CATEGORY)])):
            until_us = np.where(may_wait, start_us, end_us)[rows]
            self.found[rows] |= _beyond(until_us - end_us[host].max(), _AFTER_HOST_US)
            self.found[rows] |= _beyond(start_us[host].min() - start_us[rows], _AFTER_HOST_US)
        rows = rows[np.argsort(self._place[rows], kind="stable")]
        for stream in np.split(rows, np.flatnonzero(np.diff(self._place[rows])) + 1) if len(rows) else ():
            known = stream[~np.isnan(launched_us[stream]) & ~self.found[stream]]
            known = known[np.argsort(launched_us[known], kind="stable")]
            self.found[known] = _out_of_order(start_us[known], blocked_us[known])
            left = stream[~self.found[stream]]
            self.found[left] = _too_long(start_us[left], end_us[left], self._ids[left], may_wait[left])


def _number(category: str, name: str) -> float:
    """The number of a step of the profiler; -1 of all else."""
    number = name.removeprefix(PROFILERS_STEP)
    is_step = category == ANNOTATION_CATEGORY and number != name and number.isdecimal()
    return float(number) if is_step else -1.0


def _beyond(values_us: Floats, slack_us: float | Floats, few: int = _FEW) -> _Mask:
    """Which values are above the slack and what is usual: the largest one that is not among the few largest."""
    largest = max(1, len(values_us) // few)
    if len(values_us) <= largest or not (values_us > slack_us).any():
        return np.zeros(len(values_us), dtype=bool)
    usual_us = max(0.0, float(np.partition(values_us, -1 - largest)[-1 - largest]))
    return values_us > slack_us + usual_us


def _out_of_order(starts_us: Floats, slack_us: float | Floats = 0.0) -> _Mask:
    """Which starts are out of order: those far from the longest ascending part; of two such parts, the shorter time."""
    if not (np.maximum.accumulate(starts_us) - starts_us > _SLACK_US).any():
        return np.zeros(len(starts_us), dtype=bool)
    parts = _longest_ascending(starts_us), _longest_ascending(-starts_us[::-1])[::-1]
    is_kept = min(parts, key=lambda part: float(np.ptp(starts_us[part])))
    earlier_us = np.maximum.accumulate(np.where(is_kept, starts_us, -np.inf))
    later_us = np.minimum.accumulate(np.where(is_kept, starts_us, np.inf)[::-1])[::-1]
    away_us = np.where(is_kept, 0.0, np.maximum(earlier_us - starts_us, starts_us - later_us))
    return _beyond(away_us, _SLACK_US + slack_us)


def _longest_ascending(values: Floats) -> _Mask:
    """Which values belong to the longest ascending subsequence; of several the one with the smallest last value."""
    ends: list[float] = []  # the smallest last value of an ascending part of each length
    last: list[int] = []
    before: list[int] = []
    for row, value in enumerate(values.tolist()):
        length = bisect_right(ends, value)
        before.append(last[length - 1] if length else -1)
        ends[length : length + 1], last[length : length + 1] = [value], [row]
    is_kept = np.zeros(len(values), dtype=bool)
    row = last[-1]
    while row >= 0:
        is_kept[row] = True
        row = before[row]
    return is_kept


def _too_long(start_us: Floats, end_us: Floats, ids: Integers, may_wait: _Mask) -> _Mask:
    """Which events of a stream no device runs.

    Longer than `_LONGEST_KERNEL_US`, or a thousand times as long as is usual and still running in the middle when the
    next one starts: but collectives may wait long. And rare ones that outlast the next one, of another launch: kernels
    of a graph may run in parallel.
    """
    duration_us = end_us - start_us
    usual_us = (
        np.partition(duration_us, middle := (len(duration_us) - 1) // 2)[middle] if len(duration_us) else 0.0
    )
    is_overrun = np.append(start_us[1:] < (start_us + duration_us / 2)[:-1], False)
    is_long = is_overrun & (duration_us > max(_UNUSUAL * usual_us, _LONG_US))
    is_other = (ids[1:] != ids[:-1]) | (ids[1:] == NO_ID)
    overrun_us = np.append(np.where(is_other, end_us[:-1] - end_us[1:], 0.0), 0.0)
    is_rare = _beyond(overrun_us, _OVERRUN_US, _RARE)
    return ((is_long | (duration_us > _LONGEST_KERNEL_US)) & ~may_wait) | is_rare
