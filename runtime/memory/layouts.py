"""The fullest stage of thousands of layouts at once, as a search asks for it."""

from itertools import accumulate
from operator import le
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.memory.contents import Contents, kept_in
from kernelcast.runtime.memory.in_flight import FULL_AFTER, Load, loads
from kernelcast.runtime.memory.rows import COMMON, OF_LAYOUT, Floats, Rows
from kernelcast.runtime.memory.stages import memory_of
from kernelcast.runtime.memory.states import precision_of
from kernelcast.runtime.remembering import remembered
from kernelcast.runtime.request.fields import (
    LAYOUT,
    LayerSplit,
    LossKind,
    ModuleKind,
    ReduceDtype,
    Schedule,
)
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS
from kernelcast.runtime.step.balance import AS_SPLIT, with_ends
from kernelcast.runtime.step.layers.kinds import LayerKinds, kinds_of
from kernelcast.runtime.step.layers.sizes import OF_SIZES
from kernelcast.runtime.step.partition import partition

Whole = NDArray[np.int64]

MEMORY_DEPENDS_ON = ("layer_split", "reduce_dtype", "loss", "kept_by", "shard_group", *COMMON)
"""What memory depends on of the fields that all layouts of a search have in common."""


def largest_stage_bytes(
    model: ModelConfig,
    *,
    schedules: tuple[Schedule, ...],
    dtype: str = "float16",
    is_cpu: bool = False,
    layer_split: LayerSplit = LAYOUT["layer_split"].default,
    reduce_dtype: ReduceDtype = LAYOUT["reduce_dtype"].default,
    loss: LossKind = LAYOUT["loss"].default,
    kept_by: ModuleKind = LAYOUT["kept_by"].default,
    shard_group: int = LAYOUT["shard_group"].default,
    most_bytes: int | None = None,
    **columns: Any,
) -> Floats:
    """Bytes per device of every layout's fullest stage, float64 [layouts].

    `columns` are the fields of valid layouts whose layers are spread by `layer_split`, int64 [layouts] each:
    `schedule` is a position in `schedules`, `sequence_parallel` 0 or 1, `recompute` 0 for none, 1 for
    selective, 2 for full; `first_layers` and `last_layers`, where they are given and not `AS_SPLIT`, those of the ends
    (`with_ends`). Among them are fields `COMMON`, one value each. The answer is the largest `total_bytes` of
    `stage_memory`, rounded up; of a layout whose first stage needs more than `most_bytes`, that stage's.

    Raises:
        UsageError: a pipeline with more chunks than the layers allow, or an unknown `dtype`.
    """
    precision = precision_of(dtype, reduce_dtype)
    schedule, pp, virtual_stages = columns["schedule"], columns["pp"], columns["virtual_stages"]
    if not len(pp):
        return np.zeros(0)
    waiting = _enough(schedule, pp, columns["micro_batches"], schedules)
    # Positions in a number for each combination are not negative.
    ends = [columns[name] - AS_SPLIT for name in ("first_layers", "last_layers") if name in columns]
    shapes = (schedule, pp, virtual_stages, waiting, *ends)
    _, where, shape_of = np.unique(_one_number(shapes), return_index=True, return_inverse=True)
    fullest = [
        _fullest(kinds_of(model), schedules[kind], stages, chunks, enough, layer_split, *cut)
        for kind, stages, chunks, enough, *cut in zip(
            *(column[where].tolist() for column in shapes), strict=True
        )
    ]
    # Rows of all shapes one after the other, the first stage's first; every layout takes those of its shape.
    table, counts = np.concatenate(fullest), np.array([len(rows) for rows in fullest])
    first = (np.cumsum(counts) - counts)[shape_of]
    # The same sizes are on the devices of many layouts.
    _, sizes_at, sizes_of = np.unique(
        _one_number(tuple(columns[name] for name in OF_SIZES)), return_index=True, return_inverse=True
    )

    common = {name: columns[name] for name in COMMON if name in columns}
    contents = Contents.of(
        model,
        {name: columns[name][sizes_at].astype(np.float64) for name in OF_SIZES},
        common,
        kept_in(common, precision.element, loss, kept_by, is_cpu=is_cpu),
    )

    def needed(row_of: NDArray[np.intp], own: NDArray[np.intp]) -> Floats:
        """Of rows of the table for the layouts at `own`."""
        rows = Rows.of_loads(
            table[row_of],
            layout={name: columns[name][own].astype(np.float64) for name in OF_LAYOUT},
            shard_group=shard_group,
            common=common,
        )
        return memory_of(model, rows, contents.at(sizes_of[own]), precision=precision).total

    largest = needed(first, np.arange(len(pp)))
    others = counts[shape_of] - 1
    if most_bytes is not None:
        others[largest > most_bytes] = 0
    if others.any():
        own = np.repeat(np.arange(len(pp)), others)
        place = np.arange(len(own)) - np.repeat(np.cumsum(others) - others, others)
        np.maximum.at(largest, own, needed(first[own] + 1 + place, own))
    return largest


def _one_number(columns: tuple[Whole, ...]) -> Whole:
    """A number of its own for every combination."""
    code, values = np.zeros_like(columns[0]), 1
    for column in columns:
        width = int(column.max()) + 1
        if values * width >= 2**63:  # as many numbers as there are combinations so far
            known, code = np.unique(code, return_inverse=True)
            values = len(known)
        code, values = code * width + column, values * width
    return code


def _enough(kind: Whole, pp: Whole, micro_batches: Whole, schedules: tuple[Schedule, ...]) -> Whole:
    """Micro-batches as far as more of them change what is in flight, see `FULL_AFTER`."""
    enough = [FULL_AFTER.get(name, 0) for name in schedules]
    most = np.array(enough, dtype=np.int64)[kind] * pp
    return np.where(most, np.minimum(micro_batches, most), micro_batches)


@remembered(8 << 20)
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
    """`Load.numbers` of the stages that can be the fullest, float64 [stages, numbers].

    A stage that has no end and no more of anything than another one without ends is left out, and so is one between two
    others: with as many layers, memory is linear in what is in flight. `first` and `last` are the layers of the ends,
    and 1 more, 0 where `layer_split` gives them.
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
    stages = loads(schedule, pp, virtual_stages, micro_batches, by_kind)
    inner = stages[1:-1]
    distinct = {
        load
        for place, load in enumerate(inner)
        if not (0 < place < len(inner) - 1 and _is_between(*inner[place - 1 : place + 2]))
    }
    middle = [load for load in distinct if not any(_no_more(load, other) for other in distinct - {load})]
    kept = [stages[0], *middle, *stages[1:][-1:]]
    return np.array([load.numbers for load in kept], dtype=np.float64)


def _is_between(before: Load, load: Load, after: Load) -> bool:
    """Whether a stage has in flight what lies in the middle of its neighbours', which hold as many layers."""
    if not before.held == load.held == after.held:
        return False
    ends = zip(before.in_flight, load.in_flight, after.in_flight, strict=True)
    return all(one + other == 2 * own for one, own, other in ends)


def _no_more(load: Load, other: Load) -> bool:
    return (
        # Of stages that differ in nothing else one has to stay.
        load.chunk_layers <= other.chunk_layers
        and all(map(le, load.layers, other.layers))
        and all(map(le, load.live_layers, other.live_layers))
        and all(map(le, load.late_layers, other.late_layers))
    )
