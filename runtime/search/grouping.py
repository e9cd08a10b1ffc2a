"""From a block of layouts to groups of one structure each, with the durations of their passes and updates."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.pipeline.durations import Durations
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.search.evaluate import Group, Structure
from kernelcast.runtime.search.layouts import Layouts
from kernelcast.runtime.search.pieces import Pieces, Prices, StageKind
from kernelcast.runtime.step.partition import partition
from kernelcast.runtime.step.stage_times import chunk_times

Times = NDArray[np.float64]
Rows = NDArray[np.intp]
# Elements of one array [layouts, chunks]: what a group takes does not grow with the stages.
_MAX_ELEMENTS = 1 << 17


def groups(model: ModelConfig, pieces: Pieces, layouts: Layouts) -> Iterator[Group]:
    """Cut a block into groups, and add up the durations of each.

    Layouts that need what the bundle has no answer to are left out; `pieces.problems` says what that is.
    """
    found = [(structure, rows, _stage_kinds(model, structure)) for structure, rows in _structures(layouts)]
    prices, updates = pieces.price(layouts, [(rows, dict.fromkeys(kinds)) for _, rows, kinds in found])
    for (structure, rows, kinds), own in zip(found, updates, strict=True):
        step = max(1, _MAX_ELEMENTS // (structure.pp * structure.virtual_stages))
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            per_chunk = _per_chunk(model, pieces, structure, prices, part)
            per_stage = _per_stage(kinds, own, np.arange(first, first + len(part)))
            arrays = per_chunk | per_stage
            # NaN marks what the bundle has no answer to, and is not lost in a sum.
            known = ~np.isnan(sum(array.sum(axis=1) for array in arrays.values()))
            if not known.all():
                part, arrays = part[known], {name: array[known] for name, array in arrays.items()}
            if len(part):
                yield Group(structure, part, layouts["micro_batches"][part], Durations(**arrays))


def _structures(layouts: Layouts) -> Iterator[tuple[Structure, Rows]]:
    """The structures of a block, and the positions of their layouts."""
    sharded = (layouts["zero"] >= 2) & (layouts["dp"] > 1)
    columns = [layouts["schedule"], layouts["pp"], layouts["virtual_stages"], sharded.astype(np.int64)]
    order = np.lexsort(columns)
    keys = np.stack(columns, axis=1)[order]
    edges = np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1)) + 1
    for rows in np.split(order, edges):
        schedule, pp, virtual_stages, is_sharded = (int(column[rows[0]]) for column in columns)
        yield Structure(schedule, pp, virtual_stages, bool(is_sharded)), np.sort(rows)


def _stage_kinds(model: ModelConfig, structure: Structure) -> list[StageKind]:
    counts, pp = partition(model.layers, structure.pp, structure.virtual_stages), structure.pp
    return [
        StageKind(layers=sum(counts[stage::pp]), first=stage == 0, last=stage == pp - 1)
        for stage in range(pp)
    ]


def _per_chunk(
    model: ModelConfig, pieces: Pieces, structure: Structure, prices: Prices, rows: Rows
) -> dict[str, Times]:
    """Passes and sends of the layouts at `rows`, arrays [rows, chunks] by their names in `Durations`."""
    first, layer, last = pieces.blocks(prices, rows, sharded=structure.sharded, split=structure.split)
    counts = partition(model.layers, structure.pp, structure.virtual_stages)
    kinds = [(count, index == 0, index == len(counts) - 1) for index, count in enumerate(counts)]
    distinct = list(dict.fromkeys(kinds))
    times = [
        chunk_times(
            first=first if is_first else None,
            layer=layer,
            layers=count,
            last=last if is_last else None,
            sharded=structure.sharded,
            split=structure.split,
        )
        for count, is_first, is_last in distinct
    ]
    of_chunk = [distinct.index(kind) for kind in kinds]
    arrays = {
        name: np.stack([getattr(one, name) for one in times], axis=1)[:, of_chunk]
        for name in ("forward_us", "backward_us", "weight_us")
    }
    for name, direction, none_at in (("send_forward_us", 0, -1), ("send_backward_us", 1, 0)):
        arrays[name] = np.repeat(prices.of("send", direction, rows)[:, None], len(counts), axis=1)
        arrays[name][:, none_at] = 0
    return arrays


def _per_stage(kinds: list[StageKind], updates: Prices, rows: Rows) -> dict[str, Times]:
    """Updates of the layouts that are at `rows` of `updates`, arrays [rows, stages] by their names in `Durations`."""
    distinct = list(dict.fromkeys(kinds))
    of_stage = [distinct.index(kind) for kind in kinds]
    gradients, optimizer, gather = (
        np.stack([updates.of(kind.name, part, rows) for kind in distinct], axis=1)[:, of_stage]
        for part in range(3)
    )
    return {"all_reduce_us": gradients, "update_us": optimizer + gather}
