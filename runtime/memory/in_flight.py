"""Micro-batches in flight: passes forward whose backward pass has not begun, at their most, by schedule.

Stages are arrays: one row is one stage of one layout.
"""

from collections.abc import Sequence
from functools import cached_property, lru_cache, reduce
from operator import add, mul
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.byte_cache import remembered
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.pipeline.schedules import Kind, stage_orders
from kernelcast.runtime.request.fields import REPLICATING, Schedule
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS
from kernelcast.runtime.step.layouts import RECOMPUTE, Layouts

FULL_AFTER = {"1f1b": 1, "zero_bubble": 1, "interleaved": 3, "zb_v": 4, "dualpipe": 4, "dualpipe_v": 4}
"""From this many times pp micro-batches on, more of them change nothing in flight; with gpipe every one does."""


@dataclass(frozen=True, slots=True)
class Load:
    """One stage of a schedule at its fullest: layers held, and what is in flight (see `Rows`), by kind of layer."""

    first: int
    last: int
    chunk_layers: int
    live_first: int
    live_last: int
    late: int
    layers: tuple[int, ...]
    live_layers: tuple[int, ...]
    copies: int = 1

    @property
    def held(self) -> tuple[int, ...]:
        """Layers of its first chunk, then its own."""
        return (self.chunk_layers, *self.layers)

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Passes in flight inside the stage, without the model's ends."""
        return (self.late, *self.live_layers)

    @property
    def passes(self) -> float:
        """Passes of a chunk in flight."""
        return sum(self.live_layers) / max(1, self.chunk_layers)

    @property
    def late_layers(self) -> tuple[int, ...]:
        """Layers whose weight gradients are late, over all micro-batches."""
        return tuple(self.late * count for count in self.layers) if self.late else (0,) * len(self.layers)

    @property
    def numbers(self) -> tuple[int, ...]:
        """All numbers in one tuple."""
        return (*(getattr(self, name) for name in _ENDS), *self.layers, *self.live_layers)


def loads(
    schedule: Schedule,
    pp: int,
    virtual_stages: int,
    micro_batches: int,
    counts: tuple[tuple[int, ...], ...],
    stages: Sequence[int] | None = None,
) -> tuple[Load, ...]:
    """The `stages`, or all, of a pipeline with `counts` layers of each kind per chunk, in order.

    - gpipe runs all m forward passes first: m.
    - 1f1b: min(pp − s, m) on stage s (arXiv 2104.04473, section 2.2.1).
    - zero_bubble (ZB-H1): the same, and up to s micro-batches more whose weight gradients are late, so that
      every stage holds about the number of 1f1b's first stage (arXiv 2401.10241, section 2).
    - interleaved: stage s runs 2(pp − s − 1) + (virtual_stages − 1)·pp chunk passes ahead, then one forward,
      one backward (arXiv 2104.04473, section 2.2.2). With even chunks the first stage thus keeps
      1 + (pp − 1)/(pp · virtual_stages) times its share of all pp micro-batches (arXiv 2205.05198,
      section 4.2.3).
    - zb_v, dualpipe and dualpipe_v: as their passes are in order (pipeline/schedules.py).

    Each number of passes in flight (first, last, per kind of layer) is its own maximum; the maxima need not coincide.
    """
    asked = range(pp) if stages is None else stages
    if schedule in FULL_AFTER:
        micro_batches = min(micro_batches, FULL_AFTER[schedule] * pp)
    if SCHEDULE_KINDS[schedule].is_v:
        waiting = _waiting(schedule, pp, virtual_stages, micro_batches)
        return tuple(_load_of(schedule, waiting[stage], counts) for stage in asked)
    return tuple(
        _load(schedule, pp, virtual_stages, micro_batches, stage, counts[stage::pp]) for stage in asked
    )


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Passes of a stage's chunks that wait for their backward pass, int64 [chunks, moments].

    `late`: by how many micro-batches the maximum grows if passes that wait for weight gradients count too.
    """

    chunks: tuple[int, ...]
    alive: NDArray[np.int64]
    late: int


@remembered(8 << 20)
def _waiting(schedule: Schedule, pp: int, virtual_stages: int, micro_batches: int) -> tuple[_Waiting, ...]:
    steps = {Kind.FORWARD: (1, 0), Kind.BACKWARD: (-1, 1), Kind.WEIGHT: (0, -1)}
    found = []
    for order in stage_orders(schedule, pp, micro_batches, virtual_stages):
        chunks = sorted({one.chunk for one in order})
        changes = np.zeros((2, len(chunks), len(order) + 1), dtype=np.int64)
        for moment, one in enumerate(order, start=1):
            changes[:, chunks.index(one.chunk), moment] = steps[one.kind]
        alive, late = changes.cumsum(axis=2)
        more = (alive + late).sum(axis=0).max() - alive.sum(axis=0).max()
        # Equal moments are listed once.
        found.append(_Waiting(tuple(chunks), np.unique(alive, axis=1), -(-int(more) // len(chunks))))
    return tuple(found)


def _load_of(schedule: Schedule, waiting: _Waiting, counts: tuple[tuple[int, ...], ...]) -> Load:
    """The load of a stage with two chunks."""
    copies, chunks, alive = SCHEDULE_KINDS[schedule].copies, waiting.chunks, waiting.alive
    model_chunks = len(counts) // copies
    held = np.array([counts[chunk] for chunk in chunks], dtype=np.int64)
    is_first, is_last = (
        np.array([chunk % model_chunks == end for chunk in chunks]) for end in (0, model_chunks - 1)
    )
    return Load(
        first=int(is_first.any()),
        last=int(is_last.any()),
        chunk_layers=int(held[0].sum()),
        live_first=int((is_first @ alive).max()),
        live_last=int((is_last @ alive).max()),
        late=waiting.late,
        layers=tuple(held.sum(axis=0).tolist()),
        live_layers=tuple((held.T @ alive).max(axis=1).tolist()),
        copies=copies,
    )


def _load(
    schedule: Schedule,
    pp: int,
    virtual_stages: int,
    micro_batches: int,
    stage: int,
    chunks: tuple[tuple[int, ...], ...],
) -> Load:
    by_kind = tuple(zip(*chunks, strict=True))
    held = tuple(map(sum, by_kind))
    if schedule == "interleaved":
        ahead = min(2 * (pp - stage - 1) + (virtual_stages - 1) * pp, micro_batches * virtual_stages)
        of_first = tuple(int(chunk == 0) for chunk in range(virtual_stages))
        live_first, live_last, *live = (
            _most_alive(pp, virtual_stages, micro_batches, ahead, weights)
            for weights in (of_first, of_first[::-1], *by_kind)
        )
    else:
        live_first = live_last = micro_batches if schedule == "gpipe" else min(pp - stage, micro_batches)
        live = [live_first * layers for layers in held]
    return Load(
        first=int(stage == 0),
        last=int(stage == pp - 1),
        chunk_layers=sum(chunks[0]),
        live_first=live_first,
        live_last=live_last,
        late=min(stage, micro_batches - 1) if schedule == "zero_bubble" else 0,
        layers=held,
        live_layers=tuple(live),
    )


def _most_alive(
    pp: int, virtual_stages: int, micro_batches: int, ahead: int, weights: tuple[int, ...]
) -> int:
    """The largest weighted sum of chunk passes in flight, interleaved: `ahead` forward passes, then one forward, one
    backward. Chunks take turns every pp passes, forward from the first, backward from the last.
    """
    # The pattern repeats every turn.
    pairs = min(pp * virtual_stages, micro_batches * virtual_stages - ahead)
    forward, backward = _passed(pp, weights)
    # The maximum follows a forward pass: that of pair i runs before its backward pass.
    alive = forward[ahead + 1 : ahead + 1 + pairs] - backward[:pairs]
    return int(max(alive.max(initial=0), forward[ahead]))


@lru_cache(maxsize=64)
def _passed(pp: int, weights: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cumulative weights of the passes of three turns forward and of one turn backward, int64 [1 + passes]."""
    turn = np.repeat(np.array(weights, dtype=np.int64), pp)
    nothing = np.zeros(1, dtype=np.int64)
    return np.cumsum(np.concatenate([nothing, turn, turn, turn])), np.cumsum(
        np.concatenate([nothing, turn[::-1]])
    )


Floats: TypeAlias = NDArray[np.float64]

NONE, SELECTIVE, FULL = map(RECOMPUTE.index, ("none", "selective", "full"))
"""Codes of `Rows.recompute`."""
_ENDS = ("first", "last", "chunk_layers", "live_first", "live_last", "late", "copies")
"""The numbers of a load before those by kind."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Sizes of every row, each float64 [rows]; floats, so that no product of sizes overflows.

    - `layout` of the row, its chosen fields arrays, with its way of activation checkpointing as a code, `recompute`;
    - the ends `first`, `last` are 0 or 1;
    - `layers` of the stage by their kind, and `chunk_layers` of its first chunk;
    - in flight at the peak: `live_layers` (layers times micro-batches that wait for their backward pass) by kind,
      and micro-batches in the model's first (`live_first`) and last chunk (`live_last`), where the row has it;
    - `late` micro-batches wait for their weight gradients (zero-bubble only);
    - `copies` of the model in the pipeline.
    """

    first: Floats
    last: Floats
    chunk_layers: Floats
    live_first: Floats
    live_last: Floats
    late: Floats
    copies: Floats
    layers: tuple[Floats, ...]
    live_layers: tuple[Floats, ...]
    layout: Parallelism
    recompute: Floats

    @classmethod
    def of_loads(cls, numbers: Floats, layouts: Layouts) -> "Rows":
        """Of `Load.numbers`, float64 [rows, numbers], and the layout of each row."""
        ends, by_kind = numbers.T[: len(_ENDS)], tuple(numbers.T[len(_ENDS) :])
        kinds = len(by_kind) // 2
        own: dict[str, Any] = dict(zip(_ENDS, ends, strict=True))
        return cls(
            **own,
            layers=by_kind[:kinds],
            live_layers=by_kind[kinds:],
            layout=layouts.as_one,
            recompute=layouts["recompute"].astype(np.float64),
        )

    @cached_property
    def together(self) -> Floats:
        """Layers of a chunk that full recomputation runs again at once."""
        most = 1 if self.layout.recompute_layers else self.layout.recompute_together
        found: Floats = np.minimum(most, np.maximum(1.0, self.chunk_layers))
        return found

    @cached_property
    def has_layers(self) -> NDArray[np.bool_]:
        """Where there is any layer."""
        found: NDArray[np.bool_] = reduce(add, self.layers) > 0
        return found

    @cached_property
    def zero(self) -> Floats:
        """ZeRO stage, 0 to 3."""
        return np.asarray(self.layout.zero, dtype=np.float64)

    @cached_property
    def replicas(self) -> Floats:
        """Devices that hold the same parameters."""
        return reduce(mul, [getattr(self.layout, name) for name in REPLICATING], self.copies)

    @cached_property
    def shards(self) -> Floats:
        """Replicas that ZeRO shards over (`Parallelism.shards`)."""
        return np.where(self.replicas > 1, self.layout.shard_group or self.replicas, 1.0)

    @cached_property
    def expert_shards(self) -> Floats:
        """Devices that ZeRO shards experts over, in the same number of groups (`Parallelism.expert_replicas`)."""
        devices = self.layout.tp * self.replicas / (self.layout.ep * self.layout.expert_tp)
        return np.maximum(1.0, np.floor(devices * self.shards / self.replicas))
