"""The order of a trace's events in µs, without events whose times cannot belong to the trace."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kernelcast.collector.traces.events import (
    ANNOTATION_CATEGORY,
    DEVICE_CATEGORIES,
    HOST_OPERATOR_CATEGORY,
    LAUNCH_CATEGORIES,
    SYNC_CATEGORY,
    Events,
    Floats,
)
from kernelcast.collector.traces.impossible_times import impossible

# Kinds that Kineto writes and that hold no work of their own, or none that is read.
_OTHER_CATEGORIES = frozenset(
    {"Trace", "python_function", "gpu_user_annotation", "overhead", SYNC_CATEGORY, "cpu_instant_event", "ac2g", "async",
     "external_correlation", "fwdbwd", "cuda_profiler_range", "gpu_pm_counter", ""}
)  # fmt: skip
_READ = {
    HOST_OPERATOR_CATEGORY,
    ANNOTATION_CATEGORY,
    *DEVICE_CATEGORIES,
    *LAUNCH_CATEGORIES,
    *_OTHER_CATEGORIES,
}

# Unix time in µs is below 1e17; in ns it exceeded 1e17 in 1973: larger stamps are nanoseconds.
_LARGEST_US = 1e17

# A profiler records without pause. A few events separated from all others by more belong to another time.
_LONGEST_PAUSE_US = 600e6
_FEWEST_EVENTS = 3
_FEW = 100  # at most one event in a hundred, or one
# No event lasts longer than the recording, from the first start to the last one, by more than this.
_LONGEST_BEYOND_US = 60e6


def in_order(events: Events) -> tuple[Events, list[Events]]:
    """Events by start in µs (of equal starts longest first), and events left out; the middle event sets the unit."""
    order = np.argsort(events.start_us, kind="stable")  # NaN comes last
    odd: list[Events] = []

    def keep(wanted: NDArray[np.bool_]) -> None:
        nonlocal order
        if not wanted.all():
            odd.append(events[order[~wanted]])
            order = order[wanted]

    keep(~np.isnan(events.start_us[order]))
    if not len(order):
        return events[order], odd
    is_nanoseconds = events.start_us[order[(len(order) - 1) // 2]] > _LARGEST_US
    smallest, largest = (_LARGEST_US, _LARGEST_US * 1e3) if is_nanoseconds else (-_LARGEST_US, _LARGEST_US)
    keep(_between(events.start_us[order], smallest, largest))
    keep(_between(events.duration_us[order], 0, _LARGEST_US))
    if is_nanoseconds:
        events = replace(events, start_us=events.start_us / 1e3, duration_us=events.duration_us / 1e3)
    keep(_main_part(events.start_us[order]))
    keep(~impossible(events, order))
    start_us, duration_us = events.start_us[order], events.duration_us[order]
    if len(order) >= _FEWEST_EVENTS:
        too_long = duration_us > start_us[-1] - start_us[0] + _LONGEST_BEYOND_US
        if np.count_nonzero(too_long) <= max(1, len(order) // _FEW):
            keep(~too_long)
            start_us, duration_us = start_us[~too_long], duration_us[~too_long]
    return events[order[np.lexsort((-duration_us, start_us))]], odd


def unread_kinds(events: Events) -> Mapping[str, int]:
    """Numbers of events by kind, of kinds that nothing here reads, in order of appearance."""
    kinds, first, counts = np.unique(events.kind, return_index=True, return_counts=True)
    found: dict[str, int] = {}
    for _, kind, count in sorted(zip(first.tolist(), kinds.tolist(), counts.tolist(), strict=True)):
        category = events.texts.kinds[kind][0]
        found[category] = found.get(category, 0) + count
    return {kind: count for kind, count in found.items() if kind not in _READ}


def _between(values: Floats, smallest: float, largest: float) -> NDArray[np.bool_]:
    return (smallest <= values) & (values <= largest)


def _main_part(start_us: Floats) -> NDArray[np.bool_]:
    """All but a few events far from all others."""
    count = len(start_us)
    kept = np.ones(count, dtype=bool)
    if count < _FEWEST_EVENTS:
        return kept
    few = max(1, count // _FEW)
    pauses = np.flatnonzero(np.diff(start_us) > _LONGEST_PAUSE_US) + 1  # each is a first event after a pause
    kept[: max(pauses[pauses <= few], default=0)] = False
    kept[min(pauses[pauses >= count - few], default=count) :] = False
    return kept
