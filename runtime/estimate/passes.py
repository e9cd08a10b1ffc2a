"""Passes of one structure's layouts through their chunks, from the times of their blocks."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.estimate.configurations import Structure
from kernelcast.runtime.estimate.cuts import columns_of
from kernelcast.runtime.step.chunk_times import BlockTimes, ChunkTimes, chunk_times, sum_of
from kernelcast.runtime.step.chunks import Chunk

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

    def through(self, first: bool, counts: tuple[int, ...], kept: tuple[int, ...], last: bool) -> ChunkTimes:
        """Passes through a chunk: `counts` layers of each kind, `kept` of them not recomputed, and the model's ends."""
        return chunk_times(
            self._blocks(first, counts, kept, last),
            sharded=self.structure.is_sharded,
            split=self.structure.is_split,
            exposed_share=self.exposed_share,
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
            arrays[name] = np.where(sends, send_us[:, None], 0.0)
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
