"""Times of thousands of layouts at once: blocks of them are grouped by structure and added up as arrays."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.model import ModelConfig
from kernelcast.runtime.partition import partition
from kernelcast.runtime.pipeline.closed_form import closed_forms
from kernelcast.runtime.pipeline.durations import Durations
from kernelcast.runtime.pipeline.simulate import simulate
from kernelcast.runtime.search.layouts import SCHEDULES, Layouts
from kernelcast.runtime.search.pieces import Pieces, Prices, StageKind
from kernelcast.runtime.stage_times import ChunkTimes, chunk_times

Times = NDArray[np.float64]
Rows = NDArray[np.intp]
# Elements of one array [layouts, chunks]: what a group takes does not grow with the stages.
_MAX_ELEMENTS = 1 << 19


@dataclass(frozen=True, slots=True)
class Structure:
    """What layouts share that are evaluated as one array."""

    schedule: int
    pp: int
    virtual_stages: int
    sharded: bool

    @property
    def split(self) -> bool:
        """Whether the backward pass is cut into input and weight gradients."""
        return SCHEDULES[self.schedule] == "zero_bubble"


@dataclass(frozen=True, slots=True)
class Group:
    """Layouts of one structure: their positions in the block, micro-batches, and durations in µs."""

    structure: Structure
    rows: Rows
    micro_batches: NDArray[np.int64]
    durations: Durations

    def closed_form_us(self) -> Times:
        """The paper's eq. 7, float64 [layouts]."""
        times, pp = self.durations, self.structure.pp
        return closed_forms(
            forward_us=_stages(times.forward_us + times.send_forward_us, pp),
            backward_us=_stages(times.backward_us + times.weight_us + times.send_backward_us, pp),
            all_reduce_us=times.all_reduce_us,
            update_us=times.update_us,
            micro_batches=self.micro_batches.astype(np.float64),
        ).step_us

    def bound_us(self) -> Times:
        """No simulation of these layouts is shorter than this, float64 [layouts].

        A stage computes every micro-batch, not before the first one has come down to it, and its last backward
        pass comes up to every earlier stage. Then comes what of the all-reduce the last pass does not hide, and
        the update.
        """
        times, pp, virtual_stages = self.durations, self.structure.pp, self.structure.virtual_stages
        forward, backward, weight = times.forward_us, times.backward_us, times.weight_us
        m = self.micro_batches[:, None]
        down = _before(forward + times.send_forward_us, pp)
        up = _before(backward[:, :-1] + times.send_backward_us[:, 1:], pp)
        computed = down + m * _stages(forward + backward, pp)
        idle_from = np.maximum.accumulate((computed + up)[:, ::-1], axis=1)[:, ::-1] - up
        last_pass = backward[:, :pp]
        if self.structure.split:
            last_pass = weight
            idle_from = np.maximum(idle_from + weight, computed + m * weight)
        exposed = np.maximum(times.all_reduce_us / virtual_stages - last_pass, 0)
        bound: Times = (idle_from + exposed + times.update_us).max(axis=1)
        # Sums in another order, and the grid of a simulation, may differ by this much.
        passes = virtual_stages * (self.micro_batches + 4 * pp)
        return bound * (1 - 1e-12 - passes * 2.0**-48)

    def simulated_us(self, chosen: NDArray[np.bool_]) -> Times:
        """The event simulation of the chosen layouts, float64 [chosen]."""
        positions = np.flatnonzero(chosen)
        result = np.empty(len(positions))
        micro_batches = self.micro_batches[positions]
        for m in np.unique(micro_batches).tolist():
            same = np.flatnonzero(micro_batches == m)
            result[same] = simulate(
                schedule=SCHEDULES[self.structure.schedule],
                pp=self.structure.pp,
                micro_batches=m,
                virtual_stages=self.structure.virtual_stages,
                durations=_taken(self.durations, positions[same]),
            ).step_us
        return result


def groups(model: ModelConfig, pieces: Pieces, layouts: Layouts) -> Iterator[Group]:
    """Cut a block into groups, and add up the durations of each.

    Layouts that need what the bundle has no answer to are left out; `pieces.problems` says what that is.
    """
    found = list(_structures(layouts))
    stages = [_stage_kinds(model, structure) for structure, _ in found]
    prices, updates = pieces.price(
        layouts, [(rows, dict.fromkeys(kinds)) for (_, rows), kinds in zip(found, stages, strict=True)]
    )
    for (structure, rows), kinds, own in zip(found, stages, updates, strict=True):
        step = max(1, _MAX_ELEMENTS // (structure.pp * structure.virtual_stages))
        for first in range(0, len(rows), step):
            part = slice(first, first + step)
            yield from _group(model, pieces, layouts, structure, rows[part], kinds, prices, own, part)


def _structures(layouts: Layouts) -> Iterator[tuple[Structure, Rows]]:
    sharded = (layouts["zero"] == 3) & (layouts["dp"] > 1)
    columns = [layouts["schedule"], layouts["pp"], layouts["virtual_stages"], sharded.astype(np.int64)]
    order = np.lexsort(columns)
    keys = np.stack(columns, axis=1)[order]
    edges = np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1)) + 1
    for rows in np.split(order, edges):
        schedule, pp, virtual_stages, is_sharded = (int(column[rows[0]]) for column in columns)
        yield Structure(schedule, pp, virtual_stages, bool(is_sharded)), np.sort(rows)


def _stage_kinds(model: ModelConfig, structure: Structure) -> list[StageKind]:
    counts = partition(model.encoders, structure.pp, structure.virtual_stages)
    return [
        StageKind(
            encoders=sum(counts[stage :: structure.pp]), first=stage == 0, last=stage == structure.pp - 1
        )
        for stage in range(structure.pp)
    ]


def _group(
    model: ModelConfig,
    pieces: Pieces,
    layouts: Layouts,
    structure: Structure,
    rows: Rows,
    kinds: list[StageKind],
    prices: Prices,
    updates: Prices,
    part: slice,
) -> Iterator[Group]:
    """The group of the layouts at `rows`, those without an answer left out; none when all are."""
    inside = np.arange(part.start, part.start + len(rows))  # their positions among `updates`
    chunks = _chunk_times(model, pieces, structure, rows, prices)
    forward_us, backward_us, weight_us = (
        np.stack([getattr(chunk, name) for chunk in chunks], axis=1)
        for name in ("forward_us", "backward_us", "weight_us")
    )
    sends = []
    for direction, none_at in ((0, -1), (1, 0)):
        send = np.repeat(prices.of("send", direction, rows)[:, None], len(chunks), axis=1)
        send[:, none_at] = 0
        sends.append(send)
    by_stage = [
        np.stack([updates.of(kind.name, which, inside) for kind in kinds], axis=1) for which in range(3)
    ]
    all_reduce_us, update_us = by_stage[0], by_stage[1] + by_stage[2]
    arrays = (forward_us, backward_us, weight_us, *sends, all_reduce_us, update_us)
    # NaN marks what the bundle cannot answer, and is not lost in a sum.
    known = ~np.isnan(sum(array.sum(axis=1) for array in arrays))
    if not known.any():
        return
    if not known.all():
        rows, arrays = rows[known], tuple(array[known] for array in arrays)
    names = (
        "forward_us", "backward_us", "weight_us", "send_forward_us", "send_backward_us", "all_reduce_us",
        "update_us",
    )  # fmt: skip
    durations = Durations(**dict(zip(names, arrays, strict=True)))
    yield Group(structure, rows, layouts["micro_batches"][rows], durations)


def _chunk_times(
    model: ModelConfig, pieces: Pieces, structure: Structure, rows: Rows, prices: Prices
) -> list[ChunkTimes]:
    counts = partition(model.encoders, structure.pp, structure.virtual_stages)
    first, encoder, last = pieces.blocks(prices, rows, sharded=structure.sharded, split=structure.split)
    known: dict[tuple[int, bool, bool], ChunkTimes] = {}
    chunks = []
    for index, count in enumerate(counts):
        kind = (count, index == 0, index == len(counts) - 1)
        if kind not in known:
            known[kind] = chunk_times(
                first=first if kind[1] else None,
                encoder=encoder,
                encoders=count,
                last=last if kind[2] else None,
                sharded=structure.sharded,
                split=structure.split,
            )
        chunks.append(known[kind])
    return chunks


def _stages(per_chunk: Times, pp: int) -> Times:
    """Sums over the chunks of each stage, [layouts, stages]; chunk c runs on stage c mod pp."""
    summed: Times = per_chunk.reshape(len(per_chunk), -1, pp).sum(axis=1)
    return summed


def _before(per_chunk: Times, pp: int) -> Times:
    """Sums over the chunks before each of the first pp, [layouts, stages]."""
    summed: Times = np.pad(np.cumsum(per_chunk[:, : pp - 1], axis=1), ((0, 0), (1, 0)))
    return summed


def _taken(durations: Durations, rows: Rows) -> Durations:
    return Durations(
        forward_us=durations.forward_us[rows],
        backward_us=durations.backward_us[rows],
        weight_us=durations.weight_us[rows],
        send_forward_us=durations.send_forward_us[rows],
        send_backward_us=durations.send_backward_us[rows],
        all_reduce_us=durations.all_reduce_us[rows],
        update_us=durations.update_us[rows],
    )
