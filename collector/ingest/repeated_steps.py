"""Steps of a trace that marks none: launches that repeat one after another in the same order."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kernelcast.collector.traces.events import (
    ANNOTATION_CATEGORY,
    COLUMNS,
    DEVICE_CATEGORIES,
    LAUNCH_CATEGORIES,
    NO_ARGUMENTS,
    NO_ID,
    Events,
    Floats,
    Texts,
    last_with,
)
from kernelcast.collector.traces.kineto import Trace
from kernelcast.store.runs import CUT

REPETITION = "repetition "
# Steps of a training launch the same kernels. Layers repeat too, but not the embedding, the loss and the update around
# them: of the layers of a model's forward pass 98.8 % are followed by the same.
_LEAST_SAME = 0.998
_LEAST_LAUNCHES = 20
_RAREST, _MOST_TRIED = 4, 50  # kinds of kernels, and distances between kernels of one kind


def with_repeated_steps(trace: Trace) -> Trace:
    """The trace with an annotation for each repetition of its launches, and a note; itself where the
    launches do not repeat at least once. Repetitions begin with the first recorded launch; the last one may be cut.
    """
    launch_us, kinds = _launches(trace.events)
    if not (length := _repeats_after(kinds)):
        return trace
    starts_us, count = launch_us[::length], len(launch_us) // length
    ends_us = np.append(starts_us[1:], launch_us[-1])
    names = [f"{REPETITION}{number}" + CUT * (number > count) for number in range(1, len(starts_us) + 1)]
    note = f"no steps are marked: its launches repeat every {length:,} kernels, and {count} repetitions count as steps"
    return replace(
        trace, events=_with_marks(trace.events, names, starts_us, ends_us), notes=(*trace.notes, note)
    )


def _launches(events: Events) -> tuple[Floats, NDArray[np.int32]]:
    """When kernels with a recorded launch were launched, µs, ascending, and their kinds."""
    calls, work = (events[events.are(*wanted)] for wanted in (LAUNCH_CATEGORIES, DEVICE_CATEGORIES))
    launch = last_with(calls.correlation, work.correlation)
    launch_us = calls.start_us[launch[launch >= 0]]
    order = np.argsort(launch_us, kind="stable")
    return launch_us[order], work.kind[launch >= 0][order]


def _repeats_after(kinds: NDArray[np.int32]) -> int:
    """The least number of launches after which the same kinds follow to the end; 0 where they are not repeated."""
    known, counts = np.unique(kinds, return_counts=True)
    repeated = known[counts > 1][np.argsort(counts[counts > 1], kind="stable")][:_RAREST]
    found = set[int]()
    for kind in repeated.tolist():
        places = np.flatnonzero(kinds == kind)[: _MOST_TRIED + 1]
        found |= set((places[1:] - places[0]).tolist())
    for length in sorted(found):
        if length <= len(kinds) // 2 and np.mean(kinds[length:] == kinds[:-length]) >= _LEAST_SAME:
            return length if length >= _LEAST_LAUNCHES else 0  # shorter ones belong to a loop, not to steps
    return 0


def _with_marks(events: Events, names: list[str], starts_us: Floats, ends_us: Floats) -> Events:
    texts = Texts(
        [*events.texts.kinds, *((ANNOTATION_CATEGORY, name) for name in names)],
        [*events.texts.places, ("steps", "repeated")],
        [*events.texts.arguments, NO_ARGUMENTS],
    )
    count = len(names)
    marks = {
        "start_us": starts_us,
        "duration_us": ends_us - starts_us,
        "kind": len(events.texts.kinds) + np.arange(count, dtype=np.int32),
        "place": np.full(count, len(events.texts.places), dtype=np.int32),
        "arguments": np.full(count, len(events.texts.arguments), dtype=np.int32),
    }
    no_ids = np.full(count, NO_ID)
    columns = {name: np.concatenate([getattr(events, name), marks.get(name, no_ids)]) for name in COLUMNS}
    order = np.lexsort((-columns["duration_us"], columns["start_us"]))
    return Events(texts, **{name: column[order] for name, column in columns.items()})
