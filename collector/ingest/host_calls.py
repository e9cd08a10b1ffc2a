"""Calls of the host, summed by step and name: top-level operators, annotations, calls of the device's runtime.

Long calls of the runtime that may wait for the device have a row each, in order of time, for the critical path.
"""

from collections.abc import Iterator

import numpy as np

from kernelcast.collector.ingest.scopes import Steps, is_scope, steps_of
from kernelcast.collector.traces.call_tree import CallTree
from kernelcast.collector.traces.events import ANNOTATION_CATEGORY, LAUNCH_CATEGORIES, NO_ID
from kernelcast.collector.traces.kineto import Trace
from kernelcast.store.runs import HostTime

_WAITING = ("Synchronize", "Memcpy")
_LONG_US = 50.0


def host_times(trace: Trace, tree: CallTree) -> Iterator[HostTime]:
    """The sums, by kind, step and name; long calls that may wait one by one."""
    steps, events = Steps(steps_of(trace)), trace.events
    is_annotation = events.where(
        lambda category, name: category == ANNOTATION_CATEGORY and is_scope(category, name)
    )
    kinds = {
        "operator": tree.calls[np.array([parent is None for parent in tree.parents], dtype=bool)],
        "annotation": events[is_annotation],
        "runtime": events[events.are(*LAUNCH_CATEGORIES)],
    }
    numbers: dict[str, int] = {}
    name_of = np.array([numbers.setdefault(name, len(numbers)) for _, name in events.texts.kinds])
    names = list(numbers)
    for kind, calls in kinds.items():
        step = steps.at(calls.start_us)
        waits = calls.where(lambda _, name: any(one in name for one in _WAITING)) & (
            calls.duration_us >= _LONG_US
        )
        alone = np.where(waits & (kind == "runtime"), np.arange(len(calls)) + 1, 0)
        of_step = (np.where(step == NO_ID, -1, step) + 1) * len(names) + name_of[calls.kind]
        keys, group = np.unique(of_step * (len(calls) + 1) + alone, return_inverse=True)
        longest_us = np.zeros(len(keys))
        np.maximum.at(longest_us, group, calls.duration_us)
        counts, totals_us = np.bincount(group), np.bincount(group, weights=calls.duration_us)
        found = (keys // (len(calls) + 1)).tolist(), counts.tolist(), totals_us.tolist(), longest_us.tolist()
        for key, count, total_us, most_us in zip(*found, strict=True):
            at, name = divmod(key, len(names))
            yield HostTime(
                at - 1 if at else None, kind, names[name], count, round(total_us * 1e3), round(most_us * 1e3)
            )
