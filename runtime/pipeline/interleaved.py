"""Interleaved 1F1B, evaluated tick by tick for many configurations at once.

Number a stage's forward passes k = 0, 1, … and its backward passes j = 0, 1, … in their order. Give the forward
pass k of stage s tick k + s, and its backward pass j tick j + 2(pp − 1) + (v − 1)pp − s, after the forward pass
of that tick. Every pass then waits for what its stage did last and for what one other stage did in the tick
before: the neighbour or, where the next chunk of the model starts, the stage at the pipeline's other end.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.pipeline.durations import Durations, Ends, Times, run_steady
from kernelcast.runtime.pipeline.schedules import warm_up_passes

_Longer = tuple[int, Times]
"""A stage, and by how much its pass is longer, [configs]."""
_HISTORY = 8
"""Rounds (all chunks of pp micro-batches) among which a repetition is looked for."""


def interleaved(durations: Durations, micro_batches: int, virtual_stages: int) -> Ends:
    """Evaluate Megatron-LM's interleaved schedule; `micro_batches` is a multiple of the stages."""
    pp = durations.stages
    shape = _Shape(pp, micro_batches, virtual_stages)
    names = ("forward_us", "send_forward_us", "backward_us", "send_backward_us")
    times = tuple(np.ascontiguousarray(getattr(durations, name).T) for name in names)

    def ticks_of(configs: NDArray[np.intp]) -> _Ticks:
        return _Ticks(shape, tuple(one[:, configs] for one in times), before=shape.first_backward)

    state = np.zeros((3 * pp + 2, durations.configs))
    ticks = _Ticks(shape, times, before=0)
    overlap = durations.overlap
    for tick in range(shape.first_backward):
        ticks.tick(
            state, tick, longer_first=() if overlap is None else shape.first_passes(tick, overlap.first_us)
        )
    rounds = max(0, (shape.passes - shape.first_backward) // shape.round)
    if rounds:
        state = run_steady(ticks_of, state, rounds, history=_HISTORY)
    end = np.empty((virtual_stages, pp, durations.configs))
    completed = _completed(shape, virtual_stages)
    last_us = durations.backward_us if overlap is None else durations.backward_us + overlap.last_us
    for tick in range(shape.first_backward + rounds * shape.round, shape.ticks):
        done = completed.get(tick, ())
        longer = [] if overlap is None else [(s, overlap.last_us[:, shape.chunk(t, s)]) for t, s in done]
        ticks.tick(state, tick, longer_last=longer)
        for turn, stage in done:
            end[turn, stage] = state[pp + 1 + stage]
    start = end - last_us.T.reshape(virtual_stages, pp, -1)[::-1]
    return Ends(last_start_us=start, last_end_us=end, idle_from_us=end[-1])


def _completed(shape: "_Shape", virtual_stages: int) -> dict[int, list[tuple[int, int]]]:
    """Tick to (turn, stage) whose last micro-batch it is; chunks take turns, the last of the model first."""
    completed: dict[int, list[tuple[int, int]]] = {}
    for turn in range(virtual_stages):
        index = shape.passes - shape.round + (turn + 1) * shape.pp - 1
        for stage in range(shape.pp):
            completed.setdefault(index + shape.first_backward - stage, []).append((turn, stage))
    return completed


class _Shape:
    """What depends on the numbers of stages, micro-batches and virtual stages alone."""

    def __init__(self, pp: int, micro_batches: int, virtual_stages: int) -> None:
        self.pp, self.virtual_stages = pp, virtual_stages
        self.round = pp * virtual_stages  # a stage's passes of each kind for pp micro-batches
        self.passes = micro_batches * virtual_stages
        self.first_backward = warm_up_passes("interleaved", 0, pp, virtual_stages)
        self.ticks = self.first_backward + self.passes

    def chunk(self, turn: int, stage: int) -> int:
        """The chunk of the model whose gradients a stage completes as its `turn`-th."""
        return (self.virtual_stages - 1 - turn) * self.pp + stage

    def first_passes(self, tick: int, longer_us: Times) -> list[_Longer]:
        """The stage whose first forward pass through a chunk lies in a tick: chunk c's in tick c."""
        return [(tick % self.pp, longer_us[:, tick])] if tick < self.round else []

    def forward_chunk(self, tick: int, stage: int) -> int:
        """The chunk of the model that a stage's forward pass of a tick works on."""
        return (tick - stage) // self.pp % self.virtual_stages * self.pp + stage

    def backward_chunk(self, tick: int, stage: int) -> int:
        """The chunk of the model that a stage's backward pass of a tick works on."""
        turn = (tick - self.first_backward + stage) // self.pp % self.virtual_stages
        return self.chunk(turn, stage)


class _Ticks:
    """Advances the state between two ticks, one array [3 pp + 2, configs].

    Its rows: 1 arrival at the first stage, pp arrivals that the stages' forward passes sent, pp times at which
    the stages are free, pp arrivals that the backward passes sent, 1 arrival at the last stage. So the input
    of a stage lies one row before what it sends forward, or one row after what it sends backward.

    `times` are forward, send forward, backward and send backward, each [chunks, configs]. The times of the current
    chunks are kept per stage: in a tick one stage goes on to its next chunk.
    """

    def __init__(self, shape: _Shape, times: tuple[Times, ...], *, before: int) -> None:
        self.shape, self.times = shape, times
        stages = range(shape.pp)
        chunks = [shape.forward_chunk(before - 1, stage) for stage in stages]
        self.forward, self.send_forward = times[0][chunks], times[1][chunks]
        chunks = [shape.backward_chunk(before - 1, stage) for stage in stages]
        self.backward, self.send_backward = times[2][chunks], times[3][chunks]

    def tick(
        self,
        state: Times,
        tick: int,
        *,
        longer_first: Sequence[_Longer] = (),
        longer_last: Sequence[_Longer] = (),
    ) -> None:
        """One tick of all stages that have work in it, in order; forward passes of the stages in `longer_first`, and
        backward ones of those in `longer_last`, take so much longer.
        """
        self._next_chunks(tick)
        shape, pp = self.shape, self.shape.pp
        low, high = max(0, tick - shape.passes + 1), min(pp, tick + 1)
        if low < high:
            if low == 0:
                state[0] = state[pp] if tick // pp % shape.virtual_stages else 0.0
            free = state[pp + 1 + low : pp + 1 + high]
            np.maximum(free, state[low:high], out=free)
            free += self.forward[low:high]
            for stage, longer_us in longer_first:
                state[pp + 1 + stage] += longer_us
            np.add(free, self.send_forward[low:high], out=state[low + 1 : high + 1])
        index = tick - shape.first_backward  # of the first stage's backward pass; later ones are ahead
        low, high = max(0, -index), min(pp, shape.passes - index)
        if low < high:
            first = 2 * pp + 1
            if high == pp:
                state[-1] = state[first] if (index + pp - 1) // pp % shape.virtual_stages else 0.0
            free = state[pp + 1 + low : pp + 1 + high]
            np.maximum(free, state[first + 1 + low : first + 1 + high], out=free)
            free += self.backward[low:high]
            for stage, longer_us in longer_last:
                state[pp + 1 + stage] += longer_us
            np.add(free, self.send_backward[low:high], out=state[first + low : first + high])

    def _next_chunks(self, tick: int) -> None:
        stage = tick % self.shape.pp
        chunk = self.shape.forward_chunk(tick, stage)
        self.forward[stage], self.send_forward[stage] = self.times[0][chunk], self.times[1][chunk]
        stage = (self.shape.first_backward - tick) % self.shape.pp
        chunk = self.shape.backward_chunk(tick, stage)
        self.backward[stage], self.send_backward[stage] = self.times[2][chunk], self.times[3][chunk]

    def __call__(self, state: Times) -> None:
        """One round of ticks in which all stages have all their work."""
        for tick in range(self.shape.first_backward, self.shape.first_backward + self.shape.round):
            self.tick(state, tick)
        # Written again before they are read; until then they repeat as the others do.
        state[0] = state[-1] = state[self.shape.pp]
