"""How a layout cuts a model: kinds of layers, layers per stage (the same for all, or eq. 3–5), chunks, and balance.

Balanced, the slowest chunk is as short as possible: fewer layers where an end of the model computes too. The ends are
multiples of a layer's time, so that thousands of layouts are one array and no cut is enumerated.
"""

from collections import Counter
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.byte_cache import remembered
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.request.fields import LAYER_PARTS, LAYOUT, LayerSplit, Mixer, Schedule
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.request.schedule import stage_of


class LayerKind(NamedTuple):
    """What distinguishes layers: routed experts, a window of attention (0: none), rotation of queries
    and keys, a `mixer` of tokens, an MLP or experts (layers of Nemotron-H lack one of both).
    """

    has_experts: bool = False
    window: int = 0
    rotates: bool = True
    mixer: Mixer | Literal[""] = "attention"
    has_mlp: bool = True


DENSE = LayerKind()
"""An MLP, and attention to all tokens before."""


class LayerKinds(NamedTuple):
    """The distinct kinds of a model's layers, the most frequent first, and the position in them of every layer."""

    distinct: tuple[LayerKind, ...]
    of_layer: tuple[int, ...]

    @property
    def most_sizes(self) -> LayerKind:
        """The kind whose layers depend on the most sizes, which ends of the model may hold too: one with experts."""
        return next((kind for kind in self.distinct if kind.has_experts), DENSE)

    def counts(self, first: int, until: int) -> tuple[int, ...]:
        """Layers of each kind from number `first` to before number `until`."""
        if len(self.distinct) == 1:
            return (until - first,)
        own = self.of_layer[first:until]
        return tuple(own.count(kind) for kind in range(len(self.distinct)))


@lru_cache(maxsize=64)
def kinds_of(model: ModelConfig) -> LayerKinds:
    """The kinds of a model's layers."""
    parts = model.layer_parts
    layers = [
        _of_parts(model, index, parts[index]) if parts else _kind(model, index)
        for index in range(model.layers)
    ]
    distinct = tuple(kind for kind, _ in Counter(layers).most_common())
    return LayerKinds(distinct, tuple(distinct.index(kind) for kind in layers))


def _kind(model: ModelConfig, index: int) -> LayerKind:
    after_dense = index - model.dense_layers
    has_experts = bool(model.experts) and after_dense >= 0 and (after_dense + 1) % model.expert_interval == 0
    is_global = bool(model.global_interval) and (index + 1) % model.global_interval == 0
    has_window = 0 < model.sliding_window < model.sequence_length and not is_global
    rotates = not (model.unrotated_interval and (index + 1) % model.unrotated_interval == 0)
    return LayerKind(has_experts, model.sliding_window if has_window else 0, rotates)


def _of_parts(model: ModelConfig, index: int, letters: str) -> LayerKind:
    """The kind of a layer by the letters of its parts."""
    mixer = cast(Mixer, "".join(LAYER_PARTS[letter] for letter in letters if letter not in "-E"))
    kind = _kind(model, index) if mixer == "attention" else LayerKind(mixer=mixer)
    return kind._replace(has_experts="E" in letters, has_mlp="E" in letters or "-" in letters)


BLOCKS_BEFORE = 2
"""Blocks before the layers, on the first stage."""
BLOCKS_AFTER = 3
"""Blocks after the layers, on the last stage."""


@remembered(4 << 20)
def partition(
    layers: int, pp: int, virtual_stages: int = 1, layer_split: LayerSplit = LAYOUT["layer_split"].default
) -> tuple[int, ...]:
    """Layers of each chunk (pp stages times `virtual_stages`, in the order of the model); they sum to `layers`.

    An even split gives every chunk the same layers where the chunks divide them, and so does a balanced one, which
    starts from it (`Engine.balanced`). The paper's split, and the even one where they do not: the n + 5 blocks of a
    pipeline are spread evenly, the remainder going to the earliest chunks; 2 blocks of the first chunk and 3 of the
    last are not layers. A last chunk without layers is allowed: it still has norm, output projection and loss. Where a
    chunk would have fewer than 3 blocks, so that the last one could not hold even those, the layers alone are spread
    evenly, the remainder going to the chunks after the first. UsageError for more chunks than layers (or than (n + 5)
    // 3), or fewer than one.
    """
    chunks = pp * virtual_stages
    blocks = layers + BLOCKS_BEFORE + BLOCKS_AFTER
    # A single stage has all blocks; of several, the last has the fewest, blocks // chunks.
    roomy = max(1, blocks // BLOCKS_AFTER)
    most = max(roomy, layers)
    if not 1 <= chunks <= most:
        product = "pp" if virtual_stages == 1 else f"pp · virtual_stages ({pp} · {virtual_stages})"
        expected = f"from 1 to {most} for {layers} layers"
        raise UsageError(field="pp", subject=product, found=chunks, expected=expected)
    if layer_split != "paper" and layers % chunks == 0:
        return (layers // chunks,) * chunks
    if chunks > roomy:
        even, remainder = divmod(layers, chunks)
        return tuple(even + (1 <= chunk <= remainder) for chunk in range(chunks))
    even, remainder = divmod(blocks, chunks)
    counts = [even + (chunk < remainder) for chunk in range(chunks)]
    counts[0] -= BLOCKS_BEFORE
    counts[-1] -= BLOCKS_AFTER
    return tuple(counts)


def counts_text(counts: tuple[int, ...]) -> str:
    """Runs of equal counts.

    >>> counts_text((12, 12, 12, 9))
    '12 × 3, 9'
    """
    runs = ((count, len(list(same))) for count, same in groupby(counts))
    return ", ".join(f"{count} × {times}" if times > 1 else str(count) for count, times in runs)


def layers_of_chunks(layers: int, parallelism: Parallelism) -> tuple[int, ...]:
    """Layers of each chunk: `layer_counts` where given, else as `layer_split` says; errors as `partition`."""
    if parallelism.layer_counts is not None:
        return parallelism.layer_counts
    return partition(layers, parallelism.pp, parallelism.virtual_stages, parallelism.layer_split)


Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

AS_SPLIT = -1
"""Instead of a number of layers: those that `layer_split` gives."""

# Layers of either end above those that take less than the level at which all chunks take as long: the most even cut has
# no end further from it. Of equals the first counts: few layers on the first stage, whose activations wait longest.
_NEAR = np.array([(0, 1), (0, 0), (1, 1), (1, 0)])


def with_ends(layers: int, chunks: int, first: int, last: int) -> tuple[int, ...]:
    """Layers of each chunk with these on the first and last; between them the remainder goes to the latest.

    Later stages keep fewer micro-batches, so a layer more takes less memory there.

    >>> with_ends(32, 5, 6, 4)
    (6, 7, 7, 8, 4)
    """
    even, remainder = divmod(layers - first - last, max(1, chunks - 2))
    between = tuple(even + (chunk >= chunks - 2 - remainder) for chunk in range(chunks - 2))
    return (first, *between, last)


def balanced_ends(layers: int, chunks: int, first: Floats, last: Floats) -> tuple[Whole, Whole, Floats]:
    """Layers of the first and of the last of `chunks` (2 or more), int64 [rows] each, and what the slowest chunk takes,
    the least of all cuts `with_ends`, of those as short the most even. `first` and `last` are times of the ends,
    float64 [rows], as multiples of a layer's.
    """
    inner = chunks - 2
    ends = np.stack([first, last])[:, None, :]
    level = _level(layers, inner, ends[:, 0])
    # [ends, candidates, rows]
    counts = np.floor(np.maximum(level - ends, 0)) + _NEAR.T[:, :, None]
    if not inner:
        counts[1] = layers - counts[0]
    rest = layers - counts.sum(axis=0)
    valid = (counts >= 0).all(axis=0) & (rest >= inner)
    times = counts + ends
    slowest = times.max(axis=0)
    spread = (times**2).sum(axis=0)
    if inner:
        even = np.floor(rest / inner)
        more = rest - inner * even
        slowest = np.maximum(slowest, even + (more > 0))
        spread = spread + inner * even**2 + more * (2 * even + 1)
    # The most even cut has the shortest slowest chunk: a layer moved to a chunk that takes less makes both better.
    best = np.where(valid, spread, np.inf).argmin(axis=0)
    rows = np.arange(counts.shape[2])
    chosen = counts[:, best, rows].astype(np.int64)
    return chosen[0], chosen[1], slowest[best, rows]


def _level(layers: int, inner: int, ends: Floats) -> Floats:
    """What every chunk takes where layers can be cut, float64 [rows]; ends that take longer alone have no layers."""
    a, z = ends
    both = (layers + a + z) / (inner + 2)
    only_a, only_z = (layers + a) / (inner + 1), (layers + z) / (inner + 1)
    found: Floats = np.where(z > both, only_a, np.where(a > both, only_z, both))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StageKind:
    """Stages that have the same update: their layers of each kind, and which ends of the model they hold."""

    counts: tuple[int, ...]
    first: bool
    last: bool

    @property
    def layers(self) -> int:
        return sum(self.counts)

    @property
    def optimizer_role(self) -> str:
        """The role of its optimizer step; a single stage, first and last at once, is the last."""
        return "last_stage" if self.last else "first_stage" if self.first else "middle_stage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of the model that passes run through at once: `counts` layers of each kind, `kept` of them not
    recomputed. It sends unless the model, or its next chunk, is on the same stage.
    """

    index: int
    stage: int
    counts: tuple[int, ...]
    kept: tuple[int, ...]
    first: bool
    last: bool
    sends_forward: bool
    sends_backward: bool


def chunks_of(model: ModelConfig, parallelism: Parallelism) -> tuple[Chunk, ...]:
    """The chunks of a layout in the order of the model, by copies; UsageError for more than its layers allow."""
    return _cut_of(model, parallelism)[0]


def stage_kinds(model: ModelConfig, parallelism: Parallelism) -> tuple[StageKind, ...]:
    """The kind of every stage of a layout's pipeline; errors as of `chunks_of`."""
    return _cut_of(model, parallelism)[1]


def _cut_of(model: ModelConfig, parallelism: Parallelism) -> tuple[tuple[Chunk, ...], tuple[StageKind, ...]]:
    counts = layers_of_chunks(model.layers, parallelism)
    kept = tuple(map({count: kept_layers(parallelism, count) for count in set(counts)}.__getitem__, counts))
    return _cut(kinds_of(model), counts, kept, parallelism.schedule, parallelism.pp, parallelism.copies)


def kept_layers(layout: Parallelism, layers: int) -> int:
    """How many of a chunk's layers are not run again: its last ones. Selective checkpointing leaves none out."""
    some = layout.recompute_layers
    return max(0, layers - some) if layout.recompute == "full" and some else 0


@lru_cache(maxsize=1 << 8)
def _cut(
    kinds: LayerKinds,
    counts: tuple[int, ...],
    kept: tuple[int, ...],
    schedule: Schedule,
    pp: int,
    copies: int,
) -> tuple[tuple[Chunk, ...], tuple[StageKind, ...]]:
    """Chunks of `counts` layers, `kept` of them not recomputed, and the stages that hold them."""
    model_chunks = [*enumerate(zip(counts, kept, accumulate(counts), strict=True))] * copies
    stages = [stage_of(schedule, index, pp) for index in range(len(model_chunks))]
    chunks = tuple(
        Chunk(
            index=index,
            stage=stages[index],
            counts=kinds.counts(end - count, end),
            kept=kinds.counts(end - whole, end),
            first=own == 0,
            last=own == len(counts) - 1,
            sends_forward=own < len(counts) - 1 and stages[index] != stages[index + 1],
            sends_backward=own > 0 and stages[index] != stages[index - 1],
        )
        for index, (own, (count, whole, end)) in enumerate(model_chunks)
    )
    of_stage: list[list[Chunk]] = [[] for _ in range(pp)]
    for chunk in chunks:
        of_stage[chunk.stage].append(chunk)
    return chunks, tuple(
        StageKind(
            counts=tuple(map(sum, zip(*(chunk.counts for chunk in own), strict=True))),
            first=any(chunk.first for chunk in own),
            last=any(chunk.last for chunk in own),
        )
        for own in of_stage
    )
