"""Layouts of one structure, as arrays: the closed form, a lower bound of the simulation, and the simulation."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.pipeline.closed_form import closed_forms
from kernelcast.runtime.pipeline.durations import Durations
from kernelcast.runtime.pipeline.simulate import simulate
from kernelcast.runtime.search.layouts import SCHEDULES

Times = NDArray[np.float64]
Rows = NDArray[np.intp]


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
        pass comes up to every earlier stage. Then come the all-reduce of what the last pass adds to, and the update.
        """
        times, pp, virtual_stages = self.durations, self.structure.pp, self.structure.virtual_stages
        forward, backward, weight = times.forward_us, times.backward_us, times.weight_us
        m = self.micro_batches[:, None]
        down = _before(forward + times.send_forward_us, pp)
        up = _before(backward[:, :-1] + times.send_backward_us[:, 1:], pp)
        computed = down + m * _stages(forward + backward, pp)
        idle_from = np.maximum.accumulate((computed + up)[:, ::-1], axis=1)[:, ::-1] - up
        if self.structure.split:
            idle_from = np.maximum(idle_from + weight, computed + m * weight)
        # `simulate` cuts an all-reduce into as many pieces as the stage has chunks; the last waits for the last pass.
        bound: Times = (idle_from + times.all_reduce_us / virtual_stages + times.update_us).max(axis=1)
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
