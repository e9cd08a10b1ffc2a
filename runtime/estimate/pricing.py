"""The times of the pieces of layouts: every regressor is evaluated once for all new pieces, and prices are cached."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.answers.asking import Question
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.estimate.configurations import Rows, Times
from kernelcast.runtime.operators import OPERATORS, Direction, Key
from kernelcast.runtime.request.fields import DEGREES, EXPERT_DEGREES
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.step.chunks import StageKind
from kernelcast.runtime.step.decomposition import Block, Decomposition
from kernelcast.runtime.step.layers.experts import PADDING
from kernelcast.runtime.step.layers.linear import ADAPTER_SCALE, TRANSPOSITION
from kernelcast.runtime.step.layouts import Layouts
from kernelcast.runtime.step.op import COMPUTED_ONCE, OTHER_MICRO_BATCH, Call, Calls, Component, Overlap


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
    """A part of a piece: its block, its work, and for overlapped collectives the work that they overlap; `is_compute`:
    that compute instead; of a pass, what it takes with a host that is ahead.
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


def _exposed(blocks: Iterable[Block]) -> Parts:
    """Both passes of blocks, without what overlaps them; with `recompute_layers`, of layers that run nothing again."""
    found: dict[Part, Calls] = {}
    for one in blocks:
        again = () if one.layout.recompute_layers else one.recomputed.calls
        found[Part(one.name, What.FORWARD)] = one.passes.forward.calls
        found[Part(one.name, What.BACKWARD)] = one.passes.backward.calls + again
    return found


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
EXPOSED = Kind(name="exposed", columns=MICRO_BATCH.columns, parts=lambda d: _exposed(d.blocks.values()))
EXPOSED_IN_LAYERS = Kind(
    name="exposed in layers", columns=MICRO_BATCH.columns, parts=lambda d: _exposed(d.layers)
)
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
    """Times of the distinct pieces of one kind, float64 [pieces, parts, 2, 1 + draws]: time in µs, and how much of it
    makes gradients of weights; with the place of each part. `whose` is the piece of each layout.
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


# Prices cached from block to block; a piece is some hundred bytes.
_MAX_REMEMBERED = 1 << 15

PieceKey = tuple[object, ...]
"""Kind of piece, and the values of the columns that it depends on."""

DROPLESS_OPERATOR_US = 200.0
"""Host time of an operator of a framework's module with its checks, casts and launches; as long is a step of small
layers that nothing hides, with experts (200 to 213 on H100 and B200) or adapters (193), over its operators."""

_ASKED, _COUNT = attrgetter("operator", "direction", "shape", "role"), attrgetter("count")
"""What a call asks, and how often."""

TimesOf = Callable[[Sequence[Question]], Times]
"""Times of questions in µs, float64 [questions, 1 + draws]; NaN where there is no answer."""

_Piece = tuple[tuple[Part, ...], Times]
"""The parts of a piece, and their times, float64 [parts, 2, 1 + draws]."""


class Pricing:
    """Prices pieces by `times_of`; `decompose` makes the decomposition of a layout of a block."""

    def __init__(
        self,
        times_of: TimesOf,
        decompose: Callable[[Layouts, int], Decomposition],
        *,
        draws: int,
        has_host: bool = False,
    ) -> None:
        self.times_of, self.decompose, self.draws, self.has_host = times_of, decompose, draws, has_host
        self._known: dict[PieceKey, _Piece] = {}

    def price(self, requests: Sequence[tuple[Layouts, Sequence[Kind]]]) -> list[Prices]:
        """Prices of the kinds of pieces of every block; all blocks agree in the common fields of their layouts."""
        wanted: dict[PieceKey, Parts] = {}
        decompositions: dict[tuple[object, ...], Decomposition] = {}
        found = [self._keys(layouts, kinds, wanted, decompositions) for layouts, kinds in requests]
        if wanted:
            if len(self._known) + len(wanted) > _MAX_REMEMBERED:
                needed = {key for one in found for keys, _ in one.values() for key in keys} - wanted.keys()
                self._known = {key: self._known[key] for key in needed}
            self._known.update(self._ask(wanted, requests[0][0].like))
        return [
            Prices({name: self._priced(keys, whose) for name, (keys, whose) in one.items()}) for one in found
        ]

    def _priced(self, keys: Sequence[PieceKey], whose: Rows) -> PricedKind:
        """The prices of some pieces as one array; a part that a piece lacks takes no time."""
        pieces = [self._known[key] for key in keys]
        places = {
            part: place for place, part in enumerate(dict.fromkeys(chain(*(parts for parts, _ in pieces))))
        }
        alike: dict[tuple[Part, ...], list[int]] = {}
        for row, (parts, _) in enumerate(pieces):
            alike.setdefault(parts, []).append(row)
        times_us = np.zeros((len(pieces), len(places), 2, 1 + self.draws))
        for parts, rows in alike.items():
            own = np.stack([pieces[row][1] for row in rows])
            times_us[np.ix_(rows, [places[part] for part in parts])] = own
        return PricedKind(times_us, places, whose)

    def _keys(
        self,
        layouts: Layouts,
        kinds: Sequence[Kind],
        wanted: dict[PieceKey, Parts],
        decompositions: dict[tuple[object, ...], Decomposition],
    ) -> dict[str, tuple[list[PieceKey], Rows]]:
        """Keys of the distinct pieces of every kind, and the piece of each layout; unknown ones go into `wanted`."""
        by_columns: dict[tuple[str, ...], list[Kind]] = {}
        for kind in kinds:
            by_columns.setdefault(kind.columns, []).append(kind)
        found = {}
        for columns, alike in by_columns.items():
            distinct, whose = layouts.distinct(*columns)
            values = list(zip(*(distinct[column].tolist() for column in columns), strict=True))
            for kind in alike:
                keys: list[PieceKey] = [(kind.name, *own) for own in values]
                for row, key in enumerate(keys):
                    if key not in self._known and key not in wanted:
                        # With one layout, all pieces share one decomposition.
                        agreeing = (columns, values[row]) if len(layouts) > 1 else tuple(layouts.table[0])
                        if agreeing not in decompositions:
                            decompositions[agreeing] = self.decompose(distinct, row)
                        wanted[key] = kind.parts(decompositions[agreeing])
                found[kind.name] = keys, whose
        return found

    def _ask(self, wanted: Mapping[PieceKey, Parts], layout: Parallelism) -> dict[PieceKey, _Piece]:
        """Times of the wanted pieces; every regressor is evaluated at most once.

        A part takes at least as long as the host (docs/method.md, The host), unless graphs of whole passes replace it.
        """
        # Pieces share parts, such as forward passes with and without recomputation.
        parts = list({id(calls): calls for piece in wanted.values() for calls in piece.values()}.values())
        place = {id(calls): index for index, calls in enumerate(parts)}
        waits_for_host = np.full(len(parts), layout.cuda_graphs != "full")
        waits_for_host[
            [
                place[id(calls)]
                for piece in wanted.values()
                for part, calls in piece.items()
                if part.is_compute and part.overlap in (None, OTHER_MICRO_BATCH)
            ]
        ] = False
        totals = self._totals(parts, layout, waits_for_host)
        return {
            key: (tuple(piece), totals[[place[id(calls)] for calls in piece.values()]])
            for key, piece in wanted.items()
        }

    def _totals(
        self, parts: Sequence[Calls], layout: Parallelism, waits_for_host: NDArray[np.bool_]
    ) -> Times:
        """Times of sequences of calls, and of the weight gradients among them, float64 [parts, 2, 1 + draws]."""
        calls: list[Call] = list(chain.from_iterable(parts))
        asked = list(map(_ASKED, calls))
        position = {one: index for index, one in enumerate(dict.fromkeys(asked))}
        questions = [((operator, direction), shape, role) for operator, direction, shape, role in position]
        of_weights = np.array([key[1] is Direction.WEIGHT_GRADIENT for key, _, _ in questions], dtype=bool)
        whose = np.repeat(np.arange(len(parts)), list(map(len, parts)))
        which = np.fromiter(map(position.__getitem__, asked), dtype=np.intp, count=len(asked))
        counts = np.fromiter(map(_COUNT, calls), dtype=np.float64, count=len(calls))
        terms_us = counts[:, None] * self.times_of(questions)[which]
        weights = of_weights[which]
        # One call after the other, as `np.add.at` does, in a fifth of its time.
        draws = 1 + self.draws
        into = whose[:, None] * draws + np.arange(draws)
        totals = np.empty((len(parts), 2, draws))
        for place, (bins, terms) in enumerate(((into, terms_us), (into[weights], terms_us[weights]))):
            sums = np.bincount(bins.ravel(), terms.ravel(), len(parts) * draws)
            totals[:, place] = sums.reshape(-1, draws)
        if waits_for_host.any():

            def summed(of_questions: Sequence[float], counts: Times | float = 1.0) -> Times:
                found = np.bincount(
                    whose, np.array(of_questions, dtype=np.float64)[which] * counts, len(parts)
                )
                return np.where(waits_for_host, found, 0.0)

            host_us, waits_us = self._host_us(questions, layout, summed, counts)
            totals[:, 0] = np.maximum(totals[:, 0] + waits_us[:, None], host_us[:, None])
        return totals

    def _host_us(
        self,
        questions: Sequence[Question],
        layout: Parallelism,
        summed: Callable[..., Times],
        counts: Times,
    ) -> tuple[Times, Times]:
        """What the host takes for sequences of calls in µs, and what a device waits for the first operator after the
        host read the experts' numbers of rows (where no token is dropped, in every layer), float64 [parts] each.
        """
        # Casts, paddings, and dropouts and scales of adapters, belong to the modules of their products.
        of_modules = (
            ("float8_cast", "dropout") if layout.lora_dropout and not layout.dropout else ("float8_cast",)
        )
        computes = [
            not OPERATORS[operator].is_collective
            and operator not in of_modules
            and role not in (PADDING, ADAPTER_SCALE, TRANSPOSITION)
            for (operator, _), _, role in questions
        ]
        # Graphs of modules take the launches of all but dropless experts.
        launch_us = layout.host_launch_us if layout.cuda_graphs == "none" else 0.0
        launches = [own and _launches(one[0]) for own, one in zip(computes, questions, strict=True)]
        launches_us = launch_us * summed(launches, counts)
        if not self.has_host or layout.expert_padding:
            return launches_us, np.zeros_like(launches_us)
        has_experts = summed([operator.startswith("grouped_gemm") for (operator, _), _, _ in questions]) > 0
        permutes = [key == ("permute", Direction.FORWARD) for key, _, _ in questions]
        modules_us, waits_us = (
            has_experts * DROPLESS_OPERATOR_US * one for one in (summed(computes), summed(permutes, counts))
        )
        return np.maximum(launches_us, modules_us), waits_us


def _launches(key: Key) -> int:
    """Kernels that the host launches for one call: several for an eager operator."""
    operator, direction = key
    return OPERATORS[operator].kernels[direction] if operator.startswith("eager_") else 1
