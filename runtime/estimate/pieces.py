"""The pieces that thousands of layouts share: which columns each kind depends on, what it calls, and its prices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from kernelcast.runtime.estimate.beside_passes import besides, on_links
from kernelcast.runtime.estimate.configurations import Rows, Times
from kernelcast.runtime.estimate.layouts import Layouts
from kernelcast.runtime.request.fields import DEGREES, EXPERT_DEGREES
from kernelcast.runtime.step.calls import Calls
from kernelcast.runtime.step.chunks import StageKind
from kernelcast.runtime.step.decomposition import Decomposition

PieceKey = tuple[object, ...]
"""Kind of piece, and the values of the columns that it depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of piece: the columns that it depends on, and the calls of its parts."""

    name: str
    columns: tuple[str, ...]
    parts: Callable[[Decomposition], Sequence[Calls]]


# The degrees that cut a layer or its micro-batch.
_INNER = tuple(name for name in DEGREES if name not in ("pp", "dp"))
MICRO_BATCH = Kind(
    name="micro-batch",
    columns=(*_INNER, *EXPERT_DEGREES, "micro_batch", "sequence_parallel", "recompute", "pairs"),
    parts=lambda d: [
        *(calls for passes in d.passes for calls in (passes.forward, passes.backward)),
        *(calls for block in besides(d) for one in block for calls in (one.collective, one.compute)),
    ],
)
SEND = Kind(
    name="send",
    columns=(*DEGREES, "micro_batch"),
    parts=lambda d: [d.send],
)
SHARDS = Kind(
    name="shards",
    columns=(*_INNER, *EXPERT_DEGREES, "dp", "zero", "copies"),
    parts=lambda d: [calls for block in d.shards for calls in block],
)
ON_LINKS = Kind(
    name="on links",
    columns=MICRO_BATCH.columns,
    parts=lambda d: [calls for passes in on_links(d) for calls in passes],
)
"""What passes have on the links inside nodes, then what they have on those between them."""
RECOMPUTED = Kind(
    name="recomputed",
    columns=MICRO_BATCH.columns,
    parts=lambda d: d.recomputed_fully,
)
FIRST, LAST, LAYERS = range(3)
"""Blocks: the ends of the model, then a layer of each kind."""


def first_beside(kinds: int) -> int:
    """Parts of a micro-batch's piece: the passes of all blocks, then collectives, each with what computes beside it."""
    return 2 * (LAYERS + kinds)


@lru_cache(maxsize=1 << 12)
def update_kind(stage: StageKind) -> Kind:
    """What a stage of this kind does once per update: gradients, optimizer, parameters gathered."""

    def parts(decomposition: Decomposition) -> Sequence[Calls]:
        update = decomposition.update(stage)
        return update.gradients, update.optimizer, update.gather

    name = f"update {stage.counts} {stage.first} {stage.last}"
    # pp decides where the ends of the model lie, which sum the gradients of tied embeddings.
    return Kind(name=name, columns=(*DEGREES, *EXPERT_DEGREES, "zero", "copies"), parts=parts)


@dataclass(frozen=True, slots=True)
class Prices:
    """Times of the pieces of a block's layouts, by kind: float64 [distinct, parts, 2, 1 + draws] and who has which.

    Of a part, the first of two is its time in µs, the second how much of it makes gradients of weights.
    """

    times_us: dict[str, Times]
    whose: dict[str, Rows]

    def of(self, kind: Kind, part: int, rows: Rows, *, weights: bool = False) -> Times:
        """Time of one part for the layouts at `rows`, float64 [rows · (1 + draws)]; NaN where it has no answer."""
        times: Times = self.times_us[kind.name][self.whose[kind.name][rows], part, int(weights)]
        return times.reshape(-1)


def pass_kinds(layouts: Layouts) -> tuple[Kind, ...]:
    """What passes through the blocks depend on."""
    some = (RECOMPUTED,) if layouts.of_stack("recompute_layers") else ()
    overlaps = any(layouts.of_stack(f"overlap_{what}") for what in ("gradients", "parameters"))
    shared = (ON_LINKS,) if overlaps or (layouts["zero"] >= 2).any() else ()
    return (MICRO_BATCH, SHARDS, *shared, *some)
