"""The pieces that layouts share: the columns that each kind depends on, its calls by parts, and their prices."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.estimate.configurations import Rows, Times
from kernelcast.runtime.request.fields import DEGREES, EXPERT_DEGREES
from kernelcast.runtime.step.chunks import StageKind
from kernelcast.runtime.step.component import COMPUTED_ONCE, Component
from kernelcast.runtime.step.decomposition import Decomposition
from kernelcast.runtime.step.op import Calls, Overlap


class What(StrEnum):
    """The work whose time a part of a piece is."""

    FORWARD = "forward pass"
    BACKWARD = "backward pass with recomputation"
    KEPT_BACKWARD = "backward pass without recomputation"
    FORWARD_INSIDE = "collectives of a forward pass on links inside nodes"
    FORWARD_BETWEEN = "collectives of a forward pass on links between nodes"
    BACKWARD_INSIDE = "collectives of a backward pass on links inside nodes"
    BACKWARD_BETWEEN = "collectives of a backward pass on links between nodes"
    OVERLAPPED_FORWARD = "collectives of a forward pass that overlap computing"
    OVERLAPPED_BACKWARD = "collectives of a backward pass that overlap computing"
    OVERLAPPED_AGAIN = "collectives that run again and overlap computing"
    GATHER = "parameters gathered for a pass"
    SCATTER = "gradients scattered after a pass"
    SEND = "activations sent to a neighbour"
    REDUCTION = "gradients combined once per update"
    UPDATE = "optimizer and what runs with it"
    PARAMETER_GATHER = "parameters gathered once per update"


class Part(NamedTuple):
    """A part of a piece: its block, its work, and for overlapped collectives the work that they overlap.

    `is_compute`: the compute that overlaps, instead of the collectives; of a pass, what it takes with a host that is
    ahead.
    """

    block: str
    what: What
    overlap: Overlap | None = None
    is_compute: bool = False


Parts = Mapping[Part, Calls]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of piece: the columns that it depends on, and the calls of its parts."""

    name: str
    columns: tuple[str, ...]
    parts: Callable[[Decomposition], Parts]


# The degrees that cut a layer or its micro-batch.
_INNER = tuple(name for name in DEGREES if name not in ("pp", "dp"))


def _passes(parts: Decomposition) -> Parts:
    found: dict[Part, Calls] = {}
    for name, block in parts.blocks.items():
        forward, backward, again = block.passes.forward, block.passes.backward, block.recomputed
        wholes = {What.FORWARD: forward.calls, What.BACKWARD: backward.calls + again.calls}
        if parts.parallelism.recompute_layers:
            wholes[What.KEPT_BACKWARD] = backward.calls
        for what, calls in wholes.items():
            found[Part(name, what)] = calls
            if any(one.overlapped for one in (forward, backward, again)):
                found[Part(name, what, is_compute=True)] = (*calls,)
        for what, one in (
            (What.OVERLAPPED_FORWARD, forward),
            (What.OVERLAPPED_BACKWARD, backward),
            (What.OVERLAPPED_AGAIN, again),
        ):
            for overlap, pair in one.overlapped.items():
                found[Part(name, what, overlap)] = pair.collectives
                found[Part(name, what, overlap, is_compute=True)] = pair.compute
    return found


def _on_links(parts: Decomposition) -> Parts:
    """Collectives of every block's passes, inside nodes and between nodes."""
    found: dict[Part, Calls] = {}
    for name, block in parts.blocks.items():
        forward = block.passes.forward.collectives
        backward = block.passes.backward.collectives + block.recomputed.collectives
        for collectives, inside, between in (
            (forward, What.FORWARD_INSIDE, What.FORWARD_BETWEEN),
            (backward, What.BACKWARD_INSIDE, What.BACKWARD_BETWEEN),
        ):
            found[Part(name, inside)] = tuple(one for one in collectives if one.shape[1] <= 1)
            found[Part(name, between)] = tuple(one for one in collectives if one.shape[1] > 1)
    return found


def _shards(parts: Decomposition) -> Parts:
    return {
        Part(name, what): calls
        for name, both in parts.shards.items()
        for what, calls in zip((What.GATHER, What.SCATTER), both, strict=True)
    }


MICRO_BATCH = Kind(
    name="micro-batch",
    columns=(*_INNER, *EXPERT_DEGREES, "micro_batch", "sequence_parallel", "recompute", "pairs"),
    parts=_passes,
)
ON_LINKS = Kind(name="on links", columns=MICRO_BATCH.columns, parts=_on_links)
SEND = Kind(
    name="send",
    columns=(*DEGREES, "micro_batch"),
    parts=lambda d: {Part("", What.SEND): d.send},
)
SHARDS = Kind(
    name="shards",
    columns=(*_INNER, *EXPERT_DEGREES, "dp", "zero", "copies"),
    parts=_shards,
)


@lru_cache(maxsize=1 << 12)
def update_kind(stage: StageKind) -> Kind:
    """Work of a stage of this kind once per update: gradients, optimizer, gather of parameters."""

    def parts(decomposition: Decomposition) -> Parts:
        found: dict[Part, Calls] = dict.fromkeys(_UPDATE_PARTS, ())
        for one in decomposition.update(stage):
            found[_UPDATE_PART_OF[one.name]] += one.forward()
        return found

    name = f"update {stage.counts} {stage.first} {stage.last}"
    # pp decides where the ends of the model lie, which sum the gradients of tied embeddings.
    return Kind(name=name, columns=(*DEGREES, *EXPERT_DEGREES, "zero", "copies"), parts=parts)


UPDATE_PARTS = (What.REDUCTION, What.UPDATE, What.PARAMETER_GATHER)
_UPDATE_PARTS = [Part("", what) for what in UPDATE_PARTS]
_UPDATE_PART_OF: dict[str, Part] = {
    Component.ALL_REDUCE: Part("", What.REDUCTION),
    **dict.fromkeys(COMPUTED_ONCE, Part("", What.UPDATE)),
    Component.ALL_GATHER: Part("", What.PARAMETER_GATHER),
}


@dataclass(frozen=True, slots=True)
class PricedKind:
    """Times of the distinct pieces of one kind: float64 [pieces, parts, 2, 1 + draws], with the place of each part.

    Of a part, the first of two is its time in µs, the second how much of it makes gradients of weights. `whose` is the
    piece of each layout.
    """

    times_us: Times
    places: Mapping[Part, int]
    whose: Rows


@dataclass(frozen=True, slots=True)
class Prices:
    """Times of the pieces of a block's layouts by kind."""

    kinds: Mapping[str, PricedKind]

    def of(self, kind: Kind, part: Part, rows: Rows, *, weights: bool = False) -> Times:
        """Time of one part for the layouts at `rows`, float64 [rows · (1 + draws)]; NaN where it has no answer.

        0 where a layout has no such part.
        """
        own = self.kinds[kind.name]
        place = own.places.get(part)
        if place is None:
            return np.zeros(len(rows) * own.times_us.shape[3])
        times: Times = own.times_us[own.whose[rows], place, int(weights)]
        return times.reshape(-1)

    def overlapped(self, kind: Kind, block: str, *whats: What) -> list[Part]:
        """Parts of a block's collectives that overlap computing."""
        return [
            part
            for part in self.kinds[kind.name].places
            if part.block == block and part.what in whats and not part.is_compute
        ]
