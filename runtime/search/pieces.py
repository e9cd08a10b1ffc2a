"""The distinct pieces of many layouts, priced together: every regressor is asked once for a whole block.

Thousands of layouts share few pieces, because a piece depends on few of their columns: one layer's forward pass
on tp, micro_batch and sequence_parallel, say. The pieces are those of `decomposition`, so that a search adds up
what `Estimator.predict` adds up.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.answers.left_out import lacking
from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.answers.substitutes import Substitute, substitute
from kernelcast.runtime.bundle.calibration import Calibration, factor_of
from kernelcast.runtime.bundle.regressor_entry import Key
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.request.layout import Cluster, Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.search.layouts import Layouts
from kernelcast.runtime.step.blocks import (
    Cut,
    end_backward,
    end_forward,
    layer_backward,
    layer_forward,
    send,
)
from kernelcast.runtime.step.calls import Calls, Component
from kernelcast.runtime.step.groups import data_group, pipeline_pair
from kernelcast.runtime.step.parameters import layer_parameters, stage_parameters
from kernelcast.runtime.step.stage_times import BlockTimes
from kernelcast.runtime.step.update import Role, block_gather, block_scatter, update

Times = NDArray[np.float64]
Vector = tuple[int, ...]
PieceKey = tuple[object, ...]
"""Kind of piece, and the values of the columns that it depends on."""
TimeAndWeight = tuple[float, float]
"""Time of a part in µs, and how much of it makes gradients of linears' weights."""
# Prices remembered from block to block; a piece is some hundred bytes.
_MAX_REMEMBERED = 1 << 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of piece: the columns that it depends on, and the calls of its parts for a layout."""

    name: str
    columns: tuple[str, ...]
    parts: Callable[[Parallelism], Sequence[Calls]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageKind:
    """Stages of one layout that have the same update: so many layers, and which ends of the model."""

    layers: int
    first: bool
    last: bool

    @property
    def name(self) -> str:
        """Distinct for distinct kinds."""
        return f"update {self.layers} {self.first} {self.last}"


@dataclass(frozen=True, slots=True)
class Prices:
    """Times in µs of the pieces of a block's layouts, by kind: float64 [parts, distinct] and who has which."""

    times_us: dict[str, Times]
    weight_us: dict[str, Times]
    whose: dict[str, NDArray[np.intp]]

    def of(self, kind: str, part: int, rows: NDArray[np.intp]) -> Times:
        """Time of one part for the layouts at `rows`, float64 [rows]; NaN where it has no answer."""
        times: Times = self.times_us[kind][part, self.whose[kind][rows]]
        return times

    def weight_of(self, kind: str, part: int, rows: NDArray[np.intp]) -> Times:
        """As `of`, the part of it that makes gradients of linears' weights."""
        times: Times = self.weight_us[kind][part, self.whose[kind][rows]]
        return times


class Pieces:
    """Prices the pieces of one model on one cluster with one bundle, and remembers them."""

    def __init__(
        self,
        predictor: Predictor,
        model: ModelConfig,
        cluster: Cluster,
        bucket_entries: int,
        *,
        calibration: Calibration | None = None,
    ) -> None:
        self.predictor, self.model, self.cluster = predictor, model, cluster
        self.bucket_entries, self.calibration = bucket_entries, calibration
        self.left_out = lacking(predictor.bundle.entries)
        self.problems: dict[Key, str] = {}
        self._known: dict[PieceKey, tuple[TimeAndWeight, ...]] = {}
        self._kinds = (
            Kind(
                name="micro_batch",
                columns=("tp", "micro_batch", "sequence_parallel"),
                parts=self._micro_batch,
            ),
            Kind(
                name="layer_backward",
                columns=("tp", "micro_batch", "sequence_parallel", "recompute"),
                parts=self._layer_backward,
            ),
            Kind(
                name="send",
                columns=("tp", "micro_batch", "sequence_parallel", "pp", "dp"),
                parts=self._send,
            ),
            Kind(name="shards", columns=("tp", "dp", "zero"), parts=self._shards),
        )

    def price(
        self, layouts: Layouts, groups: Sequence[tuple[NDArray[np.intp], Collection[StageKind]]]
    ) -> tuple[Prices, list[Prices]]:
        """Prices of what micro-batches call, and of the updates of groups of layouts that have the same stages.

        Each group is the positions of its layouts, and the kinds of their stages; its prices are of kinds
        named by `StageKind.name`, with the parts gradients, optimizer and gather.
        """
        requests: list[tuple[Layouts, Sequence[Kind]]] = [(layouts, self._kinds)]
        for rows, stages in groups:
            requests.append((layouts.take(rows), [self._update_kind(stage) for stage in stages]))
        first, *others = self._price(requests)
        return first, others

    def blocks(
        self, prices: Prices, rows: NDArray[np.intp], *, sharded: bool, split: bool
    ) -> tuple[BlockTimes, BlockTimes, BlockTimes]:
        """First end, layer and last end of the layouts at `rows`."""
        nothing = np.zeros(len(rows))

        def block(forward: int, kind: str, backward: int, shard: int) -> BlockTimes:
            return BlockTimes(
                forward_us=prices.of("micro_batch", forward, rows),
                backward_us=prices.of(kind, backward, rows),
                weight_us=prices.weight_of(kind, backward, rows) if split else nothing,
                gather_us=prices.of("shards", shard, rows) if sharded else nothing,
                scatter_us=prices.of("shards", shard + 3, rows) if sharded else nothing,
            )

        return (
            block(1, "micro_batch", 3, 1),
            block(0, "layer_backward", 0, 0),
            block(2, "micro_batch", 4, 2),
        )

    def _micro_batch(self, parallelism: Parallelism) -> Sequence[Calls]:
        model, cut = self.model, Cut.of(parallelism, self.cluster, self.left_out)
        return (
            layer_forward.__wrapped__(model, cut),
            end_forward.__wrapped__(model, cut, "first"),
            end_forward.__wrapped__(model, cut, "last"),
            end_backward.__wrapped__(model, cut, "first"),
            end_backward.__wrapped__(model, cut, "last"),
        )

    def _layer_backward(self, parallelism: Parallelism) -> Sequence[Calls]:
        cut = Cut.of(parallelism, self.cluster, self.left_out)
        return (layer_backward.__wrapped__(self.model, cut, parallelism.recompute),)

    def _send(self, parallelism: Parallelism) -> Sequence[Calls]:
        if parallelism.pp == 1:
            return ((), ())
        cut, pair = Cut.of(parallelism, self.cluster, self.left_out), pipeline_pair(parallelism, self.cluster)
        both = (Component.SEND_FORWARD, Component.SEND_BACKWARD)
        return [send(self.model, cut, pair, component) for component in both]

    def _shards(self, parallelism: Parallelism) -> Sequence[Calls]:
        """Gathers of a layer, the first and the last end (ZeRO-3), then their gradients' scatters (ZeRO-2 and 3)."""
        if parallelism.zero < 2:
            return [()] * 6
        group, dp, bucket = data_group(parallelism, self.cluster), parallelism.dp, self.bucket_entries
        blocks = [
            layer_parameters(self.model, parallelism.tp),
            stage_parameters(self.model, parallelism.tp, layers=0, first=True, last=False),
            stage_parameters(self.model, parallelism.tp, layers=0, first=False, last=True),
        ]
        part = Component.GATHER_FORWARD
        gathers: list[Calls] = [()] * len(blocks)
        if parallelism.zero == 3:
            gathers = [
                block_gather.__wrapped__(n, dp=dp, group=group, bucket_entries=bucket, component=part)
                for n in blocks
            ]
        return [
            *gathers,
            *(block_scatter.__wrapped__(n, dp=dp, group=group, bucket_entries=bucket) for n in blocks),
        ]

    def _update_kind(self, stage: StageKind) -> Kind:
        role: Role = "last" if stage.last else "first" if stage.first else "middle"

        def parts(parallelism: Parallelism) -> Sequence[Calls]:
            parameters = stage_parameters(
                self.model, parallelism.tp, layers=stage.layers, first=stage.first, last=stage.last
            )
            found = update.__wrapped__(
                role,
                parameters,
                stage.layers,
                dp=parallelism.dp,
                zero=parallelism.zero,
                group=data_group(parallelism, self.cluster),
                bucket_entries=self.bucket_entries,
                left_out=self.left_out,
            )
            return found.gradients, found.optimizer, found.gather

        return Kind(name=stage.name, columns=("tp", "dp", "zero"), parts=parts)

    def _price(self, requests: Sequence[tuple[Layouts, Sequence[Kind]]]) -> list[Prices]:
        wanted: dict[PieceKey, Sequence[Calls]] = {}
        found = [
            {kind.name: self._keys(layouts, kind, wanted) for kind in kinds} for layouts, kinds in requests
        ]
        if wanted:
            if len(self._known) + len(wanted) > _MAX_REMEMBERED:
                needed = {key for one in found for keys, _ in one.values() for key in keys} - wanted.keys()
                self._known = {key: self._known[key] for key in needed}
            self._known.update(self._ask(wanted))
        return [self._arrays(one) for one in found]

    def _keys(
        self, layouts: Layouts, kind: Kind, wanted: dict[PieceKey, Sequence[Calls]]
    ) -> tuple[list[PieceKey], NDArray[np.intp]]:
        """Keys of the distinct pieces of a kind, and which is whose; unknown ones go into `wanted`."""
        distinct, whose = layouts.distinct(*kind.columns)
        values = np.stack([distinct[column] for column in kind.columns], axis=1).tolist()
        keys: list[PieceKey] = [(kind.name, *row) for row in values]
        for row, key in enumerate(keys):
            if key not in self._known and key not in wanted:
                wanted[key] = kind.parts(distinct.parallelism(row))
        return keys, whose

    def _arrays(self, found: dict[str, tuple[list[PieceKey], NDArray[np.intp]]]) -> Prices:
        times_us, weight_us = {}, {}
        for name, (keys, _) in found.items():
            array = np.array([self._known[key] for key in keys], dtype=np.float64)  # [distinct, parts, 2]
            times_us[name], weight_us[name] = (np.ascontiguousarray(array[:, :, i].T) for i in (0, 1))
        return Prices(times_us, weight_us, {name: whose for name, (_, whose) in found.items()})

    def _ask(self, wanted: dict[PieceKey, Sequence[Calls]]) -> dict[PieceKey, tuple[TimeAndWeight, ...]]:
        """(time, weight part) of every part of the wanted pieces; every regressor is asked at most once."""
        asked: dict[Key, dict[Vector, None]] = {}
        for parts in wanted.values():
            for calls in parts:
                for call in calls:
                    asked.setdefault((call.operator, call.direction), {})[call.vector] = None
        answers = {key: self._answers(key, list(vectors)) for key, vectors in asked.items()}

        def price(calls: Calls) -> TimeAndWeight:
            total = weight = 0.0
            for call in calls:
                time_us = call.count * answers[call.operator, call.direction][call.vector]
                total += time_us
                if call.is_linear_backward:
                    weight += time_us / 2
            return total, weight

        return {key: tuple(price(calls) for calls in parts) for key, parts in wanted.items()}

    def _answers(self, key: Key, vectors: list[Vector]) -> dict[Vector, float]:
        """Times in µs, by the operator's own regressor or a substitute, calibrated; NaN where there is neither."""
        factor = factor_of(self.calibration, key[0])
        answers = self._uncorrected(key, vectors)
        return answers if factor == 1 else {vector: factor * time_us for vector, time_us in answers.items()}

    def _uncorrected(self, key: Key, vectors: list[Vector]) -> dict[Vector, float]:
        operator, direction = key
        entries = self.predictor.bundle.entries
        if key in entries:
            return self._times_us(key, vectors)
        answers = dict.fromkeys(vectors, math.nan)
        served: dict[str, dict[Vector, Substitute]] = {}
        for vector in vectors:
            instead = substitute(operator, vector, entries, direction)
            if instead is None:
                self.problems[key] = f"no regressor for {operator} ({direction})"
            else:
                served.setdefault(instead.source, {})[vector] = instead
        for source, stand_ins in served.items():
            sent = {vector: instead.vector(vector) for vector, instead in stand_ins.items()}
            times_us = self._times_us((source, direction), list(dict.fromkeys(sent.values())))
            answers |= {vector: stand_ins[vector].factor * times_us[other] for vector, other in sent.items()}
        return answers

    def _times_us(self, key: Key, vectors: list[Vector]) -> dict[Vector, float]:
        """Times in µs; NaN for vectors that the regressor answers with nonsense."""
        try:
            times_us = self.predictor.times_us(*key, vectors)
        except DataError as error:
            if len(vectors) == 1:
                self.problems.setdefault(key, str(error))
                return {vectors[0]: math.nan}
            # Nonsense for one is no reason to do without the others.
            half = len(vectors) // 2
            return self._times_us(key, vectors[:half]) | self._times_us(key, vectors[half:])
        return {vector: times_us[vector] for vector in vectors}
