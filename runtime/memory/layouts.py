"""The fullest stage of thousands of layouts at once, as a search asks for it."""

from functools import lru_cache
from itertools import accumulate
from operator import le

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.memory.contents import Contents
from kernelcast.runtime.memory.in_flight import FULL_AFTER, Floats, Load, Rows, loads
from kernelcast.runtime.memory.stages import memory_of
from kernelcast.runtime.memory.states import precision_of
from kernelcast.runtime.memory.working import workspace_bytes
from kernelcast.runtime.request.fields import LayerSplit, Schedule
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS
from kernelcast.runtime.step.chunks import AS_SPLIT, LayerKinds, kinds_of, partition, with_ends
from kernelcast.runtime.step.layouts import SCHEDULES, Layouts

Whole = NDArray[np.int64]

_OF_CONTENTS = ("tp", "cp", "ep", "expert_tp", "micro_batch", "sequence_parallel")
"""Columns that decide what layers hold."""


def largest_stage_bytes(
    model: ModelConfig,
    layouts: Layouts,
    *,
    dtype: str = "float16",
    is_cpu: bool = False,
    architecture: str = "",
    most_bytes: int | None = None,
) -> Floats:
    """Bytes per device of every layout's fullest stage, float64 [layouts], rounded up; of a layout whose first stage
    needs more than `most_bytes`, that stage's. UsageError for more chunks than the layers allow, or an unknown `dtype`.
    """
    precision = precision_of(dtype, layouts.like.reduce_dtype)
    if not len(layouts):
        return np.zeros(0)
    schedule, pp = layouts["schedule"], layouts["pp"]
    # Positions in a number for each combination are not negative.
    waiting = _enough(schedule, pp, layouts["micro_batches"])
    shapes = (schedule, pp, layouts["virtual_stages"], waiting, *(layouts.ends - AS_SPLIT))
    _, where, shape_of = np.unique(_one_number(shapes), return_index=True, return_inverse=True)
    fullest = [
        _fullest(kinds_of(model), SCHEDULES[kind], stages, chunks, enough, layouts.like.layer_split, *cut)
        for kind, stages, chunks, enough, *cut in zip(
            *(column[where].tolist() for column in shapes), strict=True
        )
    ]
    # Rows of all shapes one after the other, the first stage's first; every layout takes the rows of its shape.
    table, counts = np.concatenate(fullest), np.array([len(rows) for rows in fullest])
    first = (np.cumsum(counts) - counts)[shape_of]
    # The same sizes are on the devices of many layouts.
    distinct, sizes_of = layouts.distinct(*_OF_CONTENTS)
    contents = Contents.of(model, distinct.as_one, precision.element, is_cpu=is_cpu)
    workspace = (
        0 if is_cpu else workspace_bytes(model, layouts.like, layouts["tp"].astype(float), architecture)
    )
    buffers = np.broadcast_to(workspace, len(layouts))

    def needed(row_of: NDArray[np.intp], own: NDArray[np.intp]) -> Floats:
        """Of rows of the table for the layouts at `own`."""
        rows = Rows.of_loads(table[row_of], layouts.take(own))
        found = contents.at(sizes_of[own])
        return memory_of(
            model, rows, found, precision=precision, architecture=architecture, buffers=buffers[own]
        ).total

    largest = needed(first, np.arange(len(layouts)))
    others = counts[shape_of] - 1
    if most_bytes is not None:
        others[largest > most_bytes] = 0
    if others.any():
        own = np.repeat(np.arange(len(layouts)), others)
        place = np.arange(len(own)) - np.repeat(np.cumsum(others) - others, others)
        np.maximum.at(largest, own, needed(first[own] + 1 + place, own))
    return largest


def _one_number(columns: tuple[Whole, ...]) -> Whole:
    """A number of its own for every combination."""
    code, values = np.zeros_like(columns[0]), 1
    for column in columns:
        width = int(column.max()) + 1
        if values * width >= 2**63:  # number the combinations so far
            known, code = np.unique(code, return_inverse=True)
            values = len(known)
        code, values = code * width + column, values * width
    return code


_FULL_AFTER = np.array([FULL_AFTER.get(name, 0) for name in SCHEDULES], dtype=np.int64)


def _enough(schedule: Whole, pp: Whole, micro_batches: Whole) -> Whole:
    """Micro-batches as far as more of them change what is in flight, see `FULL_AFTER`."""
    most = _FULL_AFTER[schedule] * pp
    return np.where(most, np.minimum(micro_batches, most), micro_batches)


@lru_cache(maxsize=1 << 12)  # of few stages each
def _fullest(
    kinds: LayerKinds,
    schedule: Schedule,
    pp: int,
    virtual_stages: int,
    micro_batches: int,
    layer_split: LayerSplit,
    first: int = 0,
    last: int = 0,
) -> Floats:
    """`Load.numbers` of the stages that can be the fullest, float64 [stages, numbers]: those with an end, and the
    others that no other one holds as much as. `first` and `last` are the layers of the ends, with 1 more, 0 where
    `layer_split` gives them.
    """
    layers = len(kinds.of_layer)
    counts = (
        with_ends(layers, pp * virtual_stages, first + AS_SPLIT, last + AS_SPLIT)
        if first
        else partition(layers, pp, virtual_stages, layer_split)
    )
    ends = accumulate(counts)
    by_kind = tuple(kinds.counts(end - count, end) for count, end in zip(counts, ends, strict=True))
    by_kind *= SCHEDULE_KINDS[schedule].copies
    asked = _may_be_fullest(schedule, pp, micro_batches, tuple(by_kind[stage::pp] for stage in range(pp)))
    stages = loads(schedule, pp, virtual_stages, micro_batches, by_kind, asked)
    distinct = set(stages[1:-1])
    middle = [load for load in distinct if not any(_no_more(load, other) for other in distinct - {load})]
    kept = [stages[0], *middle, *stages[1:][-1:]]
    return np.array([load.numbers for load in kept], dtype=np.float64)


def _may_be_fullest(schedule: Schedule, pp: int, micro_batches: int, held: tuple[object, ...]) -> list[int]:
    """The ends, and of stages in a row that hold the same layers those that can have most in flight.

    That is the first, as a later one never has more. With zero_bubble, weight gradients that are late rise from stage
    to stage, and what is in flight falls from stage pp − m on: memory is at its most where either changes its slope.
    """
    if SCHEDULE_KINDS[schedule].is_v:
        return list(range(pp))
    rises = {pp - micro_batches, micro_batches - 1, pp - 2} if schedule == "zero_bubble" else set[int]()
    inner = range(1, pp - 1)
    found = {stage for stage in inner if stage in rises or stage == 1 or held[stage] != held[stage - 1]}
    if rises:
        found |= {stage for stage in inner if held[stage] != held[stage + 1]}
    return sorted({0, *found, pp - 1})


def _no_more(load: Load, other: Load) -> bool:
    return (
        # Of stages that differ in nothing else one has to stay.
        load.chunk_layers <= other.chunk_layers
        and load.passes <= other.passes
        and all(map(le, load.layers, other.layers))
        and all(map(le, load.live_layers, other.live_layers))
        and all(map(le, load.late_layers, other.late_layers))
    )
