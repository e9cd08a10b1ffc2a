"""From layouts to the durations of their passes, transfers and updates: the one evaluator of `predict` and `search`.

Thousands of layouts share few pieces, because a piece depends on few of their columns: one layer's passes on tp,
micro_batch, sequence_parallel and recompute, say. The pieces are those of `Decomposition`. All of a block's are priced
together, and every regressor is asked once for all of them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.answers.asking import Question, question
from kernelcast.runtime.estimate.beside_passes import (
    Hidden,
    besides,
    hidden,
    overlapping_buckets,
    update_overlap,
)
from kernelcast.runtime.estimate.configurations import Configurations, Rows, Structure, Times, structures
from kernelcast.runtime.estimate.layouts import Layouts
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.pipeline.durations import Durations
from kernelcast.runtime.pipeline.overlap import Overlap
from kernelcast.runtime.request.fields import DEGREES
from kernelcast.runtime.request.layout import Cluster
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.calls import Calls
from kernelcast.runtime.step.chunk_times import BlockTimes, chunk_times, exposed_us, sum_of
from kernelcast.runtime.step.decomposition import Chunk, Decomposition, StageKind, chunks_of, stage_kinds

PieceKey = tuple[object, ...]
"""Kind of piece, and the values of the columns that it depends on."""
# Prices remembered from block to block; a piece is some hundred bytes.
_MAX_REMEMBERED = 1 << 15
# Elements of one array [layouts, chunks]: what a group takes does not grow with the stages.
_MAX_ELEMENTS = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """One kind of piece: the columns that it depends on, and the calls of its parts."""

    name: str
    columns: tuple[str, ...]
    parts: Callable[[Decomposition], Sequence[Calls]]


# The degrees that cut a layer or its micro-batch.
_INNER = tuple(name for name in DEGREES if name not in ("pp", "dp"))
_MICRO_BATCH = _Kind(
    name="micro-batch",
    columns=(*_INNER, "micro_batch", "sequence_parallel", "recompute"),
    parts=lambda d: [
        *(calls for block in (d.first, d.layer, d.last) for calls in (block.forward, block.backward)),
        *(calls for block in besides(d) for one in block for calls in (one.collective, one.compute)),
    ],
)
_SEND = _Kind(
    name="send",
    columns=(*DEGREES, "micro_batch"),
    parts=lambda d: [d.send],
)
_SHARDS = _Kind(
    name="shards",
    columns=(*_INNER, "dp", "zero"),
    parts=lambda d: [
        calls for block in (d.first, d.layer, d.last) for calls in (block.gather, block.scatter)
    ],
)
_FIRST, _LAYER, _LAST = range(3)
# Forward and backward passes of the three blocks; then collectives, each followed by what computes beside it.
_PASSES = 6


@lru_cache(maxsize=1 << 12)
def _update(stage: StageKind) -> _Kind:
    def parts(decomposition: Decomposition) -> Sequence[Calls]:
        update = decomposition.update(stage)
        return update.gradients, update.optimizer, update.gather

    name = f"update {stage.layers} {stage.first} {stage.last}"
    # pp decides where the ends of the model lie, which sum the gradients of tied embeddings.
    return _Kind(name=name, columns=(*DEGREES, "zero"), parts=parts)


@dataclass(frozen=True, slots=True)
class _Prices:
    """Times of the pieces of a block's layouts, by kind: float64 [distinct, parts, 2, 1 + draws] and who has which.

    Of a part, the first of two is its time in µs, the second how much of it makes gradients of weights.
    """

    times_us: dict[str, Times]
    whose: dict[str, Rows]

    def of(self, kind: _Kind, part: int, rows: Rows, *, weights: bool = False) -> Times:
        """Time of one part for the layouts at `rows`, float64 [rows · (1 + draws)]; NaN where it has no answer."""
        times: Times = self.times_us[kind.name][self.whose[kind.name][rows], part, int(weights)]
        return times.reshape(-1)


TimesOf = Callable[[Sequence[Question]], Times]
"""Times of questions in µs, float64 [questions, 1 + draws]; NaN where there is no answer."""


class Engine:
    """Prices layouts of one model on one cluster, and remembers their pieces.

    `times_of` answers questions, usually with a bundle's regressors (`BundleTimes`): every layout is evaluated once
    with the predicted times, and `draws` times with random ones. `element_bytes` are those of the operators' type.
    """

    def __init__(
        self,
        model: ModelConfig,
        cluster: Cluster,
        bucket_entries: int,
        times_of: TimesOf,
        *,
        element_bytes: int,
        draws: int = 0,
    ) -> None:
        self.model, self.cluster, self.bucket_entries = model, cluster, bucket_entries
        self.times_of, self.draws, self.element_bytes = times_of, draws, element_bytes
        self._known: dict[PieceKey, Times] = {}
        self._hidden: dict[str, tuple[Hidden, ...]] = {}

    def configurations(self, layouts: Layouts) -> Iterator[Configurations]:
        """A block of layouts in parts of one structure each.

        Layouts that need what has no answer are left out.
        """
        sharded = (layouts["zero"] >= 2) & (layouts.replicas > 1)
        found = []
        for structure, rows in structures(
            layouts["schedule"], layouts["pp"], layouts["virtual_stages"], sharded.astype(np.int64)
        ):
            chunks = chunks_of(self.model, layouts.parallelism(int(rows[0])))
            found.append((structure, rows, chunks, stage_kinds(chunks, structure.pp)))
        requests: list[tuple[Layouts, Sequence[_Kind]]] = [(layouts, (_MICRO_BATCH, _SEND, _SHARDS))]
        for _, rows, _, stages in found:
            requests.append((layouts.take(rows), [_update(stage) for stage in dict.fromkeys(stages)]))
        prices, *updates = self._price(requests)
        for (structure, rows, chunks, stages), own in zip(found, updates, strict=True):
            step = max(1, _MAX_ELEMENTS // (len(chunks) * (1 + self.draws)))
            for first in range(0, len(rows), step):
                part = rows[first : first + step]
                of_update = np.arange(first, first + len(part))
                yield from self._group(layouts, structure, chunks, stages, prices, own, part, of_update)

    def _group(
        self,
        layouts: Layouts,
        structure: Structure,
        chunks: tuple[Chunk, ...],
        stages: tuple[StageKind, ...],
        prices: _Prices,
        updates: _Prices,
        rows: Rows,
        of_update: Rows,
    ) -> Iterator[Configurations]:
        """The layouts at `rows`, which are those at `of_update` of the structure's updates."""
        share = layouts.of_stack("exposed_share")
        blocks = [self._block(layouts, prices, structure, index, rows) for index in (_FIRST, _LAYER, _LAST)]
        arrays = _per_chunk(
            structure,
            chunks,
            blocks,
            prices.of(_SEND, 0, rows),
            exposed_share=share,
        )
        of_kind = {
            stage: [updates.of(_update(stage), part, of_update) for part in range(3)]
            for stage in dict.fromkeys(stages)
        }
        gradients, optimizer, gather = (
            _stacked([of_kind[stage][part] for stage in stages]) for part in range(3)
        )
        overlap = self._overlap(layouts, structure, stages, rows, arrays, gradients, gather)
        if layouts.of_stack("overlap_parameters"):
            gather = np.zeros_like(gather)
        arrays |= {"all_reduce_us": gradients, "update_us": optimizer + gather}
        rows = np.repeat(rows, 1 + self.draws)
        others = {
            "gather_us": gather,
            "layer_forward_us": blocks[_LAYER].forward_us,
            "layer_backward_us": blocks[_LAYER].backward_us,
        }
        # NaN marks what has no answer, and is not lost in a sum.
        parts = [*arrays.values(), *(() if overlap is None else (overlap.first_us, overlap.last_us))]
        known = ~np.isnan(sum(array.sum(axis=1) for array in parts))
        if not known.all():
            rows = rows[known]
            arrays = {name: array[known] for name, array in arrays.items()}
            others = {name: array[known] for name, array in others.items()}
            overlap = None if overlap is None else overlap.take(known)
        if len(rows):
            yield Configurations(
                structure=structure,
                rows=rows,
                micro_batches=layouts["micro_batches"][rows],
                durations=Durations(**arrays, overlap=overlap),
                **others,
            )

    def _overlap(
        self,
        layouts: Layouts,
        structure: Structure,
        stages: tuple[StageKind, ...],
        rows: Rows,
        passes: dict[str, Times],
        gradients: Times,
        gather: Times,
    ) -> Overlap | None:
        """What collectives of the update do to the passes that they run beside; None where none does."""
        combines, gathers = (layouts.of_stack(f"overlap_{what}") for what in ("gradients", "parameters"))
        if not (combines or gathers):
            return None
        distinct, whose = layouts.distinct(*DEGREES)
        counts = np.zeros((len(distinct), len(stages)))
        for row in np.unique(whose[rows]).tolist():
            counts[row] = overlapping_buckets(
                self._take_apart(distinct, row), stages, structure.virtual_stages
            )
        return update_overlap(
            forward_us=passes["forward_us"],
            send_us=passes["send_forward_us"],
            completing_us=passes["weight_us" if structure.is_split else "backward_us"],
            gradients_us=gradients if combines else None,
            gather_us=gather if gathers else None,
            buckets=np.repeat(counts[whose[rows]], 1 + self.draws, axis=0),
            exposed_share=layouts.of_stack("exposed_share"),
        )

    def _take_apart(self, layouts: Layouts, row: int) -> Decomposition:
        return Decomposition(
            model=self.model,
            parallelism=layouts.parallelism(row),
            cluster=self.cluster,
            bucket_entries=self.bucket_entries,
            element_bytes=self.element_bytes,
        )

    def _block(
        self, layouts: Layouts, prices: _Prices, structure: Structure, index: int, rows: Rows
    ) -> BlockTimes:
        exposed_share = layouts.of_stack("exposed_share")
        forward_us = prices.of(_MICRO_BATCH, 2 * index, rows)
        nothing = np.zeros_like(forward_us)
        passes = {True: [forward_us], False: [prices.of(_MICRO_BATCH, 2 * index + 1, rows)]}
        for one in self._hidden_of(layouts, index, int(rows[0])):
            network_us = prices.of(_MICRO_BATCH, one.part, rows)
            if one.of_weights and structure.is_split:
                # Zero-bubble makes the weights' gradients later: nothing computes beside it.
                passes[one.is_forward].append(network_us)
                continue
            compute_us = prices.of(_MICRO_BATCH, one.part + 1, rows)
            within_us = compute_us
            if one.in_pieces:
                within_us = compute_us * (1 - 1 / np.repeat(layouts["tp"][rows], 1 + self.draws))
            passes[one.is_forward].append(exposed_us(network_us, within_us, exposed_share))
        return BlockTimes(
            forward_us=sum_of(passes[True]),
            backward_us=sum_of(passes[False]),
            weight_us=prices.of(_MICRO_BATCH, 2 * index + 1, rows, weights=True)
            if structure.is_split
            else nothing,
            gather_us=prices.of(_SHARDS, 2 * index, rows) if structure.is_sharded else nothing,
            scatter_us=prices.of(_SHARDS, 2 * index + 1, rows) if structure.is_sharded else nothing,
        )

    def _hidden_of(self, layouts: Layouts, index: int, row: int) -> list[Hidden]:
        """Collectives beside products of block `index`: as many in every layout with the same `tensor_overlap`."""
        overlap = layouts.of_stack("tensor_overlap")
        if overlap not in self._hidden:
            self._hidden[overlap] = hidden(self._take_apart(layouts, row), first_part=_PASSES)
        return [one for one in self._hidden[overlap] if one.block == index]

    def _price(self, requests: Sequence[tuple[Layouts, Sequence[_Kind]]]) -> list[_Prices]:
        wanted: dict[PieceKey, Sequence[Calls]] = {}
        taken_apart: dict[tuple[int, ...], Decomposition] = {}
        found = [
            {kind.name: self._keys(layouts, kind, wanted, taken_apart) for kind in kinds}
            for layouts, kinds in requests
        ]
        if wanted:
            if len(self._known) + len(wanted) > _MAX_REMEMBERED:
                needed = {key for one in found for keys, _ in one.values() for key in keys} - wanted.keys()
                self._known = {key: self._known[key] for key in needed}
            self._known.update(self._ask(wanted))
        return [
            _Prices(
                {name: np.stack([self._known[key] for key in keys]) for name, (keys, _) in one.items()},
                {name: whose for name, (_, whose) in one.items()},
            )
            for one in found
        ]

    def _keys(
        self,
        layouts: Layouts,
        kind: _Kind,
        wanted: dict[PieceKey, Sequence[Calls]],
        taken_apart: dict[tuple[int, ...], Decomposition],
    ) -> tuple[list[PieceKey], NDArray[np.intp]]:
        """Keys of the distinct pieces of a kind, and which is whose; unknown ones go into `wanted`."""
        distinct, whose = layouts.distinct(*kind.columns)
        values = zip(*(distinct[column].tolist() for column in kind.columns), strict=True)
        keys: list[PieceKey] = [(kind.name, *row) for row in values]
        for row, key in enumerate(keys):
            if key not in self._known and key not in wanted:
                layout = tuple(distinct.table[row].tolist())
                if layout not in taken_apart:
                    taken_apart[layout] = self._take_apart(distinct, row)
                wanted[key] = kind.parts(taken_apart[layout])
        return keys, whose

    def _ask(self, wanted: dict[PieceKey, Sequence[Calls]]) -> dict[PieceKey, Times]:
        """Times of the wanted pieces, float64 [parts, 2, 1 + draws] each; every regressor is asked at most once."""
        asked: dict[Question, int] = {}
        of_part: list[int] = []
        of_question: list[int] = []
        counts: list[int] = []
        of_weights: list[bool] = []
        parts = [calls for piece in wanted.values() for calls in piece]
        for part, calls in enumerate(parts):
            for call in calls:
                of_part.append(part)
                of_question.append(asked.setdefault(question(call), len(asked)))
                counts.append(call.count)
                of_weights.append(call.direction is Direction.WEIGHT_GRADIENT)
        terms_us = np.array(counts, dtype=np.float64)[:, None] * self.times_of(list(asked))[of_question]
        totals = np.zeros((len(parts), 2, 1 + self.draws))
        whose, weights = np.array(of_part, dtype=np.intp), np.array(of_weights, dtype=bool)
        np.add.at(totals[:, 0], whose, terms_us)
        np.add.at(totals[:, 1], whose[weights], terms_us[weights])
        ends = np.cumsum([len(piece) for piece in wanted.values()])
        return dict(zip(wanted, np.split(totals, ends[:-1]), strict=True))


def _per_chunk(
    structure: Structure,
    chunks: tuple[Chunk, ...],
    blocks: Sequence[BlockTimes],
    send_us: Times,
    *,
    exposed_share: float,
) -> dict[str, Times]:
    """Passes and sends, arrays [configs, chunks] by their names in `Durations`."""
    kinds = [(chunk.first, chunk.layers, chunk.last) for chunk in chunks]
    known = {
        (first, layers, last): chunk_times(
            first=blocks[_FIRST] if first else None,
            layer=blocks[_LAYER],
            layers=layers,
            last=blocks[_LAST] if last else None,
            sharded=structure.is_sharded,
            split=structure.is_split,
            exposed_share=exposed_share,
        )
        for first, layers, last in dict.fromkeys(kinds)
    }
    arrays = {
        name: _stacked([getattr(known[kind], name) for kind in kinds])
        for name in ("forward_us", "backward_us", "weight_us")
    }
    for name, none_at in (("send_forward_us", -1), ("send_backward_us", 0)):
        arrays[name] = np.repeat(send_us[:, None], len(chunks), axis=1)
        arrays[name][:, none_at] = 0
    return arrays


def _stacked(columns: Sequence[Times]) -> Times:
    return np.stack(columns, axis=1)
