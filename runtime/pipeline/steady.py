"""The steady phase of a long schedule: once it repeats exactly, the rest follows by multiplication."""

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.pipeline.durations import Times

Advance = Callable[[Times], None]
"""Takes a state [rows, configs] one round further, in place."""


def run_steady(
    advance_of: Callable[[NDArray[np.intp]], Advance], state: Times, rounds: int, *, history: int
) -> Times:
    """The state [rows, configs] after `rounds` rounds; `advance_of` makes the step for some configurations.

    A round consists of maxima and of additions of constant times. If every row of a state is later by d than p rounds
    before, it will be later by d again after p more rounds. Times lie on a grid (`Durations.on_grid`), so the
    comparison is exact. Periods up to `history` rounds are looked for, less and less often; configurations that do not
    repeat are run to the end.
    """
    result = np.empty_like(state)
    running = np.arange(state.shape[1])
    advance, past = advance_of(running), deque[Times](maxlen=history)
    look_at = 2
    for done in range(1, rounds + 1):
        past.append(state.copy())
        advance(state)
        if done != look_at or done == rounds:
            continue
        look_at = done + max(2, done // 2)
        found, final = _repeating(state, past, rounds - done)
        if found.any():
            result[:, running[found]] = final[:, found]
            running, state = running[~found], np.ascontiguousarray(state[:, ~found])
            if not running.size:
                return result
            advance, past = advance_of(running), deque((one[:, ~found] for one in past), maxlen=history)
    result[:, running] = state
    return result


def _repeating(state: Times, past: deque[Times], remaining: int) -> tuple[NDArray[np.bool_], Times]:
    """Which configurations repeat, and the states of those after `remaining` more rounds."""
    found, final = np.zeros(state.shape[1], dtype=np.bool_), np.empty_like(state)
    for period in range(1, len(past) + 1):
        before = past[-period]
        # Two rows exclude most configurations that do not repeat.
        if not ((state[0] - before[0] == state[-1] - before[-1]) & ~found).any():
            continue
        later = state - before
        new = (later == later[0]).all(axis=0) & ~found
        whole, rest = divmod(remaining, period)
        final[:, new] = past[rest - period][:, new] + (whole + 1) * later[:, new]
        found |= new
        if found.all():
            break
    return found, final
