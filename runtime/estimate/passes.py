"""Passes of one structure's layouts through their chunks, from times of their blocks, and what overlaps with them."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.estimate.configurations import Rows, Structure, Times
from kernelcast.runtime.memory.stages import offloaded_by_layers
from kernelcast.runtime.pipeline.durations import (
    Overlap,
    beyond_us,
    gathered_together_us,
    gathered_us,
    slowed_us,
)
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.chunk_times import BlockTimes, ChunkTimes, chunk_times, exposed_us, sum_of
from kernelcast.runtime.step.chunks import AS_SPLIT, Chunk, StageKind, balanced_ends
from kernelcast.runtime.step.decomposition import Decomposition
from kernelcast.runtime.step.layouts import OF_STAGES, Layouts
from kernelcast.runtime.step.update import Host

_TYPES = {2: "bfloat16", 4: "float32", 8: "float64"}
"""A type with this number of bytes per element: the size of activations depends only on it."""


class HostShare:
    """The host of an engine's devices; its link moves `link_bytes_per_s` unless layouts state another rate."""

    def __init__(
        self, model: ModelConfig, link_bytes_per_s: float | None, *, element_bytes: int, draws: int
    ) -> None:
        self.model, self.link_bytes_per_s = model, link_bytes_per_s
        self.element_bytes, self.draws = element_bytes, draws

    def _host(self, layouts: Layouts, rows: Rows) -> Host | None:
        """Its rates; all layouts have the same. UsageError where a rate that is needed is not known."""
        return Host.of(layouts.parallelism(int(rows[0])), self.link_bytes_per_s) if len(rows) else None

    def update_us(
        self, layouts: Layouts, rows: Rows, decompose: Callable[[Layouts, int], Decomposition]
    ) -> Times | float:
        """Time of the host's part of every stage's update, [configs, stages] of one pp; 0 without a part."""
        if not layouts.like.offload_optimizer:
            return 0.0
        host = self._host(layouts, rows)
        if host is None:
            return 0.0
        distinct, whose = layouts.distinct(*OF_STAGES, "zero")
        known = {
            row: [parts.host_update_us(stage, host) for stage in parts.stages]
            for row in sorted(set(whose[rows].tolist()))
            for parts in (decompose(distinct, row),)
        }
        return np.repeat([known[row] for row in whose[rows].tolist()], 1 + self.draws, axis=0)

    def beside_copies(
        self, layouts: Layouts, rows: Rows, layers: tuple[BlockTimes, ...]
    ) -> tuple[BlockTimes, ...]:
        """Times of layers whose activations go to the host and back: a copy adds what compute does not hide."""
        share = layouts.like.exposed_share
        host = self._host(layouts, rows) if layouts.like.offload_activations else None
        if host is None:
            return layers
        columns = (*OF_STAGES, "micro_batch", "sequence_parallel", "recompute")
        distinct, whose = layouts.take(rows).distinct(*columns)
        sent = offloaded_by_layers(self.model, distinct, dtype=_TYPES[self.element_bytes])
        copies_us = np.repeat(sent[:, whose] / host.link, 1 + self.draws, axis=1)
        return tuple(
            replace(
                layer,
                forward_us=layer.forward_us + exposed_us(copy_us, layer.forward_us, share),
                backward_us=layer.backward_us + exposed_us(copy_us, layer.backward_us, share),
            )
            for layer, copy_us in zip(layers, copies_us, strict=True)
        )


def overlapping_buckets(
    parts: Decomposition, stages: tuple[StageKind, ...], chunks_per_stage: int
) -> list[int]:
    """Buckets of one chunk of every stage; a stage's parameters count as evenly spread over its chunks."""
    of_kind = {
        stage: parts.data_parallel.buckets(-(-parts.parameters(stage) // chunks_per_stage))
        for stage in dict.fromkeys(stages)
    }
    return [of_kind[stage] for stage in stages]


def update_overlap(
    structure: Structure,
    *,
    forward_us: Times,
    send_us: Times,
    completing_us: Times,
    links_us: tuple[Times, Times],
    gradients_us: Times | None,
    gather_us: Times | None,
    buckets: Times,
    exposed_share: float,
) -> Overlap:
    """Effect of the update's collectives on the passes that they overlap (docs/timeline.md). Times of passes and of
    `links_us`, in which these use the same links themselves, [configs, chunks]; `gradients_us`, `gather_us` (None where
    they overlap with nothing) and `buckets` [configs, stages].
    """
    of_chunk, nothing = structure.per_chunk(buckets), np.zeros_like(forward_us)

    def shared(of_stage: Times) -> Times:
        return structure.per_chunk(of_stage / structure.chunks_per_stage)

    first_us = last_us = nothing
    stages = buckets.shape[1]
    if gather_us is not None and structure.virtual_stages > 1:
        first_us = gathered_together_us(
            forward_us, send_us, shared(gather_us), of_chunk, exposed_share, links_us[0], stages
        )
    elif gather_us is not None:
        first_us = gathered_us(forward_us, shared(gather_us), of_chunk, exposed_share, links_us[0])
    if gradients_us is not None:
        network_us = shared(gradients_us)
        last_us = slowed_us(completing_us, network_us, of_chunk, exposed_share, links_us[1])
        if structure.virtual_stages > 1:
            # What the completing pass leaves runs under passes of the chunks before.
            left_us = network_us - last_us / (exposed_share or 1)
            last_us[:, stages:] += beyond_us(left_us, completing_us, exposed_share, stages)[:, stages:]
    return Overlap(
        first_us=first_us,
        last_us=last_us,
        buckets=np.ones_like(buckets) if gradients_us is None else buckets,
        # The chunks of a stage are nearly equal.
        link_us=structure.per_stage(links_us[1]) / structure.virtual_stages,
    )


ChunkKind = tuple[bool, tuple[int, ...], tuple[int, ...], bool]
"""A chunk: whether it has the model's first end, layers of each kind, layers not recomputed, whether it has the last
end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Times of the blocks of layouts of one structure for one micro-batch, [configs] each; layers by kind."""

    structure: Structure
    first: BlockTimes
    last: BlockTimes
    layers: tuple[BlockTimes, ...]
    kept_layers: tuple[BlockTimes, ...]
    exposed_share: float
    forward_passes: int

    def take(self, rows: Rows, structure: Structure) -> "Passes":
        """Passes of the configurations at `rows`, which rise, of one structure."""
        if len(rows) == len(self.first.forward_us):
            return replace(self, structure=structure)
        first, last, *layers = (one.take(rows) for one in (self.first, self.last, *self.layers))
        are_same = self.kept_layers is self.layers
        kept = layers if are_same else [one.take(rows) for one in self.kept_layers]
        blocks: dict[str, Any] = {"layers": tuple(layers), "kept_layers": tuple(kept)}
        return replace(self, structure=structure, first=first, last=last, **blocks)

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
        kinds = _kinds(cuts)
        nothing = np.zeros_like(self.first.forward_us)
        forward, completing = dict[ChunkKind, Times](), dict[ChunkKind, Times]()

        def on_links(kind: ChunkKind, name: str) -> Times:
            # Kinds without layers are left out, not multiplied by 0: their time may be NaN (no answer).
            blocks = [(block, count) for block, count in self._blocks(*kind) if count]
            of_block = attrgetter(f"{name}_link_us", f"{name}_us")
            return sum_of([nothing, *(count * np.minimum(*of_block(one)) for one, count in blocks)])

        for kind in dict.fromkeys(kind for cut in kinds for kind in cut):
            forward[kind] = on_links(kind, "forward")
            completing[kind] = nothing if self.structure.is_split else on_links(kind, "backward")
        return columns_of(forward, kinds, whose), columns_of(completing, kinds, whose)

    def whole_us(self, first: bool, counts: tuple[int, ...], kept: tuple[int, ...], last: bool) -> Times:
        """Forward and backward passes together, [configs]."""
        times = self.through(first, counts, kept, last)
        return times.forward_us + times.backward_us + times.weight_us

    def per_chunk(
        self, cuts: Sequence[tuple[Chunk, ...]], whose: NDArray[np.intp], send_us: Times
    ) -> dict[str, Times]:
        """Passes and sends, [configs, chunks] by their names in `Durations`; `whose` cut a configuration has."""
        kinds = _kinds(cuts)
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


def _kinds(cuts: Sequence[tuple[Chunk, ...]]) -> list[list[ChunkKind]]:
    return [[(chunk.first, chunk.counts, chunk.kept, chunk.last) for chunk in chunks] for chunks in cuts]


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
