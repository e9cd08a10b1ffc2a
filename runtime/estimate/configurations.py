"""Layouts of one structure as arrays: their step by closed form and by simulation, and a lower bound of the latter."""

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.pipeline.durations import Durations
from kernelcast.runtime.pipeline.simulate import StepTimes, closed_forms, simulate
from kernelcast.runtime.request.fields import Schedule, TimelineKind
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS
from kernelcast.runtime.step.layouts import SCHEDULES, Layouts

Times = NDArray[np.float64]
Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Structure:
    """The fields shared by layouts that are evaluated as one array."""

    schedule: Schedule
    pp: int
    virtual_stages: int
    is_sharded: bool

    @property
    def is_split(self) -> bool:
        """Whether the backward pass is cut into input and weight gradients."""
        return SCHEDULE_KINDS[self.schedule].splits

    @property
    def pairs(self) -> bool:
        """Whether the passes of two micro-batches run together."""
        return SCHEDULE_KINDS[self.schedule].pairs

    @property
    def chunks_per_stage(self) -> int:
        """Chunks of a stage, of all copies of the model."""
        return self.virtual_stages * SCHEDULE_KINDS[self.schedule].copies

    def per_stage(self, per_chunk: Times) -> Times:
        """Sums over each stage's chunks for one micro-batch, [configs, stages]; copies of the model take turns."""
        by_turn = per_chunk.reshape(len(per_chunk), -1, self.pp).copy()
        if SCHEDULE_KINDS[self.schedule].is_v:
            by_turn[:, 1::2] = by_turn[:, 1::2, ::-1].copy()
        summed: Times = by_turn.sum(axis=1) / SCHEDULE_KINDS[self.schedule].copies
        return summed

    def per_chunk(self, per_stage: Times) -> Times:
        """Values of stages repeated for their chunks, [configs, chunks]."""
        turns = [per_stage] * self.chunks_per_stage
        if SCHEDULE_KINDS[self.schedule].is_v:
            turns[1::2] = [per_stage[:, ::-1]] * len(turns[1::2])
        return np.concatenate(turns, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configurations:
    """Layouts of one structure, a row for each with its draws. `rows` are positions in the block of layouts;
    `gather_us` [configs, stages] is the part of an update that gathers parameters; `layer_forward_us` and
    `layer_backward_us` [configs] are times of one transformer layer.
    """

    structure: Structure
    rows: Rows
    micro_batches: NDArray[np.int64]
    durations: Durations
    gather_us: Times
    layer_forward_us: Times
    layer_backward_us: Times

    def take(self, chosen: NDArray[np.bool_]) -> "Configurations":
        """The chosen configurations."""
        arrays = ("rows", "micro_batches", "gather_us", "layer_forward_us", "layer_backward_us")
        found = {name: getattr(self, name)[chosen] for name in arrays}
        return replace(self, durations=self.durations.take(np.flatnonzero(chosen)), **found)

    def per_stage(self, per_chunk: Times) -> Times:
        """`Structure.per_stage`."""
        return self.structure.per_stage(per_chunk)

    @property
    def forward_us(self) -> Times:
        """Forward pass of a stage with its sends, one micro-batch, [configs, stages]."""
        return self.per_stage(self.durations.forward_us + self.durations.send_forward_us)

    @property
    def backward_us(self) -> Times:
        """Whole backward pass of a stage with its sends, one micro-batch, [configs, stages]."""
        times = self.durations
        return self.per_stage(times.backward_us + times.weight_us + times.send_backward_us)

    def times(self, timeline: TimelineKind, chosen: NDArray[np.bool_] | None = None) -> StepTimes:
        """Times of the chosen configurations, or of all: "simulate" is exact for the schedule; "closed-form" is the
        paper's eq. 7, made for 1F1B: an upper envelope where stages are equal.
        """
        positions = np.arange(len(self.rows)) if chosen is None else np.flatnonzero(chosen)
        if timeline != "closed-form":
            return self._simulated(positions)
        return closed_forms(
            forward_us=self.forward_us[positions],
            backward_us=self.backward_us[positions],
            all_reduce_us=self.durations.all_reduce_us[positions],
            update_us=self.durations.update_us[positions],
            micro_batches=self.micro_batches[positions].astype(np.float64),
            overlap=None if self.durations.overlap is None else self.durations.overlap.take(positions),
        )

    def _simulated(self, positions: Rows) -> StepTimes:
        step_us, pipeline_us = np.empty(len(positions)), np.empty(len(positions))
        micro_batches = self.micro_batches[positions]
        for m in sorted(set(micro_batches.tolist())):  # `np.unique` imports numpy.ma, for 20 ms
            same = np.flatnonzero(micro_batches == m)
            found = simulate(
                schedule=self.structure.schedule,
                pp=self.structure.pp,
                micro_batches=m,
                virtual_stages=self.structure.virtual_stages,
                durations=self.durations.take(positions[same]),
            )
            step_us[same], pipeline_us[same] = found.step_us, found.pipeline_us
        return StepTimes(step_us=step_us, pipeline_us=pipeline_us)

    def bound_us(self) -> Times:
        """A lower bound of the simulated step, float64 [configs]: a stage computes every micro-batch, between the first
        one's way down and the last one's way up; then come all-reduce and update.
        """
        if SCHEDULE_KINDS[self.structure.schedule].is_v:
            return self._bound_of_v_us()
        times, pp, virtual_stages = self.durations, self.structure.pp, self.structure.virtual_stages
        forward, backward, weight = times.forward_us, times.backward_us, times.weight_us
        m = self.micro_batches[:, None]
        down = _before(forward + times.send_forward_us, pp)
        up = _before(backward[:, :-1] + times.send_backward_us[:, 1:], pp)
        computed = down + m * self.per_stage(forward + backward)
        idle_from = np.maximum.accumulate((computed + up)[:, ::-1], axis=1)[:, ::-1] - up
        if self.structure.is_split:
            idle_from = np.maximum(idle_from + weight, computed + m * weight)
        # `simulate` cuts an all-reduce into as many pieces as the stage has chunks, and these into buckets; the last
        # waits for the last pass.
        pieces = virtual_stages if times.overlap is None else virtual_stages * times.overlap.buckets
        bound: Times = (idle_from + times.all_reduce_us / pieces + times.update_us).max(axis=1)
        # Sums in another order, and the grid of a simulation, may differ by this much.
        passes = virtual_stages * (self.micro_batches + 4 * pp)
        return bound * (1 - 1e-12 - passes * 2.0**-48)

    def _bound_of_v_us(self) -> Times:
        """The same where stages have two chunks, one of them in reverse order: no stage begins before a first
        micro-batch reaches it from either side; then it computes its share of all, in pairs if shorter, and updates.
        """
        times, structure = self.durations, self.structure
        pp = structure.pp
        passes = times.forward_us + times.backward_us + times.weight_us
        for saved_us in (times.saved_forward_us, times.saved_backward_us):
            passes = passes if saved_us is None else passes - saved_us
        begin = _before(times.forward_us + times.send_forward_us, pp)
        if SCHEDULE_KINDS[structure.schedule].copies > 1:
            other = _before((times.forward_us + times.send_forward_us)[:, pp:], pp)[:, ::-1]
            begin = np.minimum(begin, other)
        computed = begin + self.micro_batches[:, None] * self.per_stage(passes)
        bound: Times = (computed + times.update_us).max(axis=1)
        return bound * (1 - 1e-12 - 6 * (self.micro_batches + 4 * pp) * 2.0**-48)


def structures(layouts: Layouts) -> list[tuple[Structure, Rows]]:
    """The structures of a block of layouts, and the positions of their layouts."""
    if not len(layouts):
        return []
    columns = [*(layouts[name] for name in ("schedule", "pp", "virtual_stages")), layouts.are_sharded]
    order = np.lexsort(columns)
    keys = np.stack(columns, axis=1)[order]
    edges = np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1)) + 1
    found = []
    for rows in np.split(order, edges):
        kind, stages, chunks, is_sharded = (int(column[rows[0]]) for column in columns)
        found.append((Structure(SCHEDULES[kind], stages, chunks, bool(is_sharded)), np.sort(rows)))
    return found


def _before(per_chunk: Times, pp: int) -> Times:
    """Sums over the chunks before each of the first pp, [configs, stages]."""
    summed = np.zeros((len(per_chunk), min(pp, 1 + per_chunk.shape[1])))
    np.cumsum(per_chunk[:, : pp - 1], axis=1, out=summed[:, 1:])
    return summed
