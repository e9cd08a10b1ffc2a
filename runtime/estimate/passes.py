"""Passes of one structure's layouts through their chunks, from the times of their blocks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.estimate.configurations import Structure
from kernelcast.runtime.estimate.cuts import columns_of
from kernelcast.runtime.step.chunk_times import BlockTimes, ChunkTimes, chunk_times
from kernelcast.runtime.step.decomposition import Chunk

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Times of the blocks of layouts of one structure for one micro-batch, [configs] each.

    Where `recomputed_layers` is not 0, only so many layers of a chunk are recomputed, the others are a `kept_layer`.
    """

    structure: Structure
    first: BlockTimes
    layer: BlockTimes
    kept_layer: BlockTimes
    last: BlockTimes
    recomputed_layers: int
    exposed_share: float

    def through(self, first: bool, layers: int, last: bool) -> ChunkTimes:
        """Passes through a chunk of `layers`, perhaps with an end of the model."""
        return chunk_times(
            first=self.first if first else None,
            layer=self.layer,
            layers=layers,
            last=self.last if last else None,
            kept_layer=self.kept_layer,
            kept_layers=max(0, layers - self.recomputed_layers) if self.recomputed_layers else 0,
            sharded=self.structure.is_sharded,
            split=self.structure.is_split,
            exposed_share=self.exposed_share,
        )

    def whole_us(self, first: bool, layers: int, last: bool) -> Times:
        """Forward and backward passes together, [configs]."""
        times = self.through(first, layers, last)
        return times.forward_us + times.backward_us + times.weight_us

    def per_chunk(
        self, cuts: Sequence[tuple[Chunk, ...]], whose: NDArray[np.intp], send_us: Times
    ) -> dict[str, Times]:
        """Passes and sends, [configs, chunks] by their names in `Durations`; `whose` cut a configuration has."""
        kinds = [[(chunk.first, chunk.layers, chunk.last) for chunk in chunks] for chunks in cuts]
        known = {kind: self.through(*kind) for kind in dict.fromkeys(kind for cut in kinds for kind in cut)}
        arrays = {
            name: columns_of({kind: getattr(times, name) for kind, times in known.items()}, kinds, whose)
            for name in ("forward_us", "backward_us", "weight_us")
        }
        for name, none_at in (("send_forward_us", -1), ("send_backward_us", 0)):
            arrays[name] = np.repeat(send_us[:, None], len(kinds[0]), axis=1)
            arrays[name][:, none_at] = 0
        return arrays
