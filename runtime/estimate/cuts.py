"""How layouts of one structure are cut into chunks, and which cut has the shortest slowest chunk."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.step.balance import AS_SPLIT, balanced_ends
from kernelcast.runtime.step.chunks import Chunk, StageKind

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cuts:
    """The distinct cuts of some layouts with their stages, and the cut of each layout, intp [layouts]."""

    chunks: Sequence[tuple[Chunk, ...]]
    stages: Sequence[tuple[StageKind, ...]]
    whose: NDArray[np.intp]

    @property
    def layouts(self) -> list[NDArray[np.intp]]:
        """The layouts of each cut, ascending."""
        return [np.flatnonzero(self.whose == index) for index in range(len(self.stages))]


def columns_of(
    times_us: Mapping[Any, Times], cuts: Sequence[Sequence[Any]], whose: NDArray[np.intp]
) -> Times:
    """Times of the kinds that the cut of each configuration lists, float64 [configs, kinds of a cut]."""
    table = np.stack(list(times_us.values()))
    position = {kind: row for row, kind in enumerate(times_us)}
    found = np.empty((len(whose), len(cuts[0])))
    for index, cut in enumerate(cuts):
        own = slice(None) if len(cuts) == 1 else np.flatnonzero(whose == index)
        found[own] = table[[position[kind] for kind in cut]][:, own].T
    return found


def better_ends(
    even: tuple[int, ...],
    whole_us: Callable[[bool, int, bool], Times],
    *,
    passes: NDArray[np.int64],
    update_us: Times,
) -> NDArray[np.int64]:
    """Layers of the first and last chunk, int64 [2, configs]; `AS_SPLIT` where `even` is as good.

    `whole_us` tells what a chunk takes for one micro-batch by whether it is the first, its layers, and whether it is
    the last, [configs]; `passes` how often a shorter chunk gains; `update_us` what a layer more adds to an update.
    """
    layers, chunks = sum(even), len(even)
    usual = layers // chunks
    base_us = whole_us(False, usual, False)
    layer_us = whole_us(False, usual + 1, False) - base_us
    is_known = layer_us > 0  # NaN is not
    ends = [
        np.maximum(0.0, end_us - base_us) / np.where(is_known, layer_us, np.nan)
        for end_us in (whole_us(True, usual, False), whole_us(False, usual, True))
    ]
    is_known = np.isfinite(ends[0]) & np.isfinite(ends[1])
    first, last = (np.where(is_known, end, 0.0) for end in ends)
    own_first, own_last, slowest = balanced_ends(layers, chunks, first, last)
    usually = np.maximum(even[0] + first, even[-1] + last)
    fullest = np.maximum(own_first, own_last)
    if chunks > 2:
        usually = np.maximum(usually, max(even[1:-1]))
        fullest = np.maximum(fullest, -(-(layers - own_first - own_last) // (chunks - 2)))
    gained_us = passes * (usually - slowest) * layer_us
    lost_us = (fullest - max(even)) * update_us
    is_better = is_known & (slowest < usually * (1 - 1e-9)) & (gained_us > lost_us)
    return np.where(is_better, np.stack([own_first, own_last]), AS_SPLIT)
