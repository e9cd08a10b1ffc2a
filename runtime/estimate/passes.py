"""Passes of one structure's layouts through their chunks, from the times of their blocks, and cuts into chunks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.estimate.configurations import Structure
from kernelcast.runtime.step.balance import AS_SPLIT, balanced_ends
from kernelcast.runtime.step.chunk_times import BlockTimes, ChunkTimes, chunk_times, sum_of
from kernelcast.runtime.step.chunks import Chunk, StageKind

Times = NDArray[np.float64]
ChunkKind = tuple[bool, tuple[int, ...], tuple[int, ...], bool]
"""A chunk: whether it has the model's first end, layers of each kind, layers not recomputed, whether it has the last
end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Times of the blocks of layouts of one structure for one micro-batch, [configs] each.

    `layers` are times of a layer of each kind, `kept_layers` the same without recomputation.
    """

    structure: Structure
    first: BlockTimes
    last: BlockTimes
    layers: tuple[BlockTimes, ...]
    kept_layers: tuple[BlockTimes, ...]
    exposed_share: float
    forward_passes: int

    def through(self, first: bool, counts: tuple[int, ...], kept: tuple[int, ...], last: bool) -> ChunkTimes:
        """Passes through a chunk: `counts` layers of each kind, `kept` of them not recomputed, and the model's ends."""
        return chunk_times(
            self._blocks(first, counts, kept, last),
            sharded=self.structure.is_sharded,
            split=self.structure.is_split,
            exposed_share=self.exposed_share,
            forward_passes=self.forward_passes,
        )

    def _blocks(
        self, first: bool, counts: tuple[int, ...], kept: tuple[int, ...], last: bool
    ) -> list[tuple[BlockTimes, int]]:
        recomputed = [
            (layer, count - own) for layer, count, own in zip(self.layers, counts, kept, strict=True)
        ]
        whole = zip(self.kept_layers, kept, strict=True)
        return [(self.first, int(first)), *recomputed, *whole, (self.last, int(last))]

    def links_us(self, cuts: Sequence[tuple[Chunk, ...]], whose: NDArray[np.intp]) -> tuple[Times, Times]:
        """How long the first forward pass and the one that completes gradients use the links of data parallelism for
        their own collectives, [configs, chunks] each. Passes that only make weights' gradients have none.
        """
        kinds = [[(chunk.first, chunk.counts, chunk.kept, chunk.last) for chunk in chunks] for chunks in cuts]
        nothing = np.zeros_like(self.first.forward_us)
        forward, completing = dict[ChunkKind, Times](), dict[ChunkKind, Times]()
        for kind in dict.fromkeys(kind for cut in kinds for kind in cut):
            # Kinds without layers are left out, not multiplied by 0: their time may be NaN (no answer).
            blocks = [(block, count) for block, count in self._blocks(*kind) if count]
            forward[kind] = sum_of(
                [nothing, *(count * np.minimum(one.forward_link_us, one.forward_us) for one, count in blocks)]
            )
            completing[kind] = nothing
            if not self.structure.is_split:
                completing[kind] = sum_of(
                    [
                        nothing,
                        *(count * np.minimum(one.backward_link_us, one.backward_us) for one, count in blocks),
                    ]
                )
        return columns_of(forward, kinds, whose), columns_of(completing, kinds, whose)

    def whole_us(self, first: bool, counts: tuple[int, ...], kept: tuple[int, ...], last: bool) -> Times:
        """Forward and backward passes together, [configs]."""
        times = self.through(first, counts, kept, last)
        return times.forward_us + times.backward_us + times.weight_us

    def per_chunk(
        self, cuts: Sequence[tuple[Chunk, ...]], whose: NDArray[np.intp], send_us: Times
    ) -> dict[str, Times]:
        """Passes and sends, [configs, chunks] by their names in `Durations`; `whose` cut a configuration has."""
        kinds = [[(chunk.first, chunk.counts, chunk.kept, chunk.last) for chunk in chunks] for chunks in cuts]
        known = {kind: self.through(*kind) for kind in dict.fromkeys(kind for cut in kinds for kind in cut)}
        arrays = {
            name: columns_of({kind: getattr(times, name) for kind, times in known.items()}, kinds, whose)
            for name in ("forward_us", "backward_us", "weight_us")
        }
        # The same chunks send in every cut.
        for name, sends in (
            ("send_forward_us", [chunk.sends_forward for chunk in cuts[0]]),
            ("send_backward_us", [chunk.sends_backward for chunk in cuts[0]]),
        ):
            times = self.forward_passes if name == "send_forward_us" else 1
            arrays[name] = np.where(sends, times * send_us[:, None], 0.0)
        return arrays

    def saved(
        self, together: "Passes", cuts: Sequence[tuple[Chunk, ...]], whose: NDArray[np.intp]
    ) -> dict[str, Times]:
        """Time saved by passes in pairs, which take `together`: [configs, chunks] by their names in `Durations`."""
        nothing = np.zeros(len(whose))
        alone, in_pairs = (one.per_chunk(cuts, whose, nothing) for one in (self, together))
        return {
            f"saved_{name}": np.maximum(0.0, alone[name] - in_pairs[name])
            for name in ("forward_us", "backward_us")
        }


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
