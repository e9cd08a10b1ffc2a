"""Memory of every stage along the passes of a step: what is kept between them, and what backward passes add."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.memory.in_flight import Floats, Load
from kernelcast.runtime.memory.stages import bytes_of_loads, stages_at_their_fullest
from kernelcast.runtime.pipeline.schedules import Kind, Pass
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS
from kernelcast.runtime.step.chunks import chunks_of

_CHANGES = {Kind.FORWARD: (1, 0), Kind.BACKWARD: (-1, 1), Kind.WEIGHT: (0, -1)}
"""What a pass adds to the passes in flight, and to those whose weight gradients are late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemoryOverStep:
    """Bytes of one device of a stage along its passes.

    - `states_bytes`: weights, gradients, optimizer states and workspaces, the same all the time;
    - `kept_bytes`: activations and logits before the first pass and after each, float64 [1 + passes];
    - `working_bytes`: working memory at the start of each pass, 0 but for backward passes, float64 [passes].
    """

    states_bytes: float
    kept_bytes: Floats
    working_bytes: Floats

    @property
    def peak_pass(self) -> int:
        """The first pass at whose start the device is at its fullest."""
        return int(np.argmax(self._at_starts))

    @property
    def peak_bytes(self) -> float:
        """Bytes at its start."""
        return float(self.states_bytes + self._at_starts.max())

    @property
    def _at_starts(self) -> Floats:
        return self.kept_bytes[:-1] + self.working_bytes


def memory_over_step(
    model: ModelConfig, parallelism: Parallelism, orders: Sequence[Sequence[Pass]], **options: Any
) -> tuple[StageMemoryOverStep, ...]:
    """The memory of `stage_memory` at each pass that the stages run in `orders`; options as there. With several chunks
    per stage no moment may reach `StageMemory.total_bytes`, which adds up what is most at different ones.
    """
    splits = SCHEDULE_KINDS[parallelism.schedule].splits
    counts = np.array([chunk.counts for chunk in chunks_of(model, parallelism)], dtype=np.int64)
    found = []
    for load, order in zip(stages_at_their_fullest(model, parallelism), orders, strict=True):
        moments, place = _moments(load, order, counts, len(counts) // parallelism.copies, splits=splits)
        held = bytes_of_loads(model, parallelism, moments, **options)
        is_backward = np.array([one.kind is Kind.BACKWARD for one in order])
        states = held.weights + held.gradients + held.optimizer + held.workspace
        found.append(
            StageMemoryOverStep(
                states_bytes=float(states[0]),
                kept_bytes=(held.activations + held.logits)[place],
                working_bytes=np.where(is_backward, held.working[place[:-1]], 0.0),
            )
        )
    return tuple(found)


def _moments(
    load: Load, order: Sequence[Pass], counts: NDArray[np.int64], model_chunks: int, *, splits: bool
) -> tuple[tuple[Load, ...], NDArray[np.intp]]:
    """The distinct loads of a stage between its passes, and which one there is before the first and after each."""
    chunks = sorted({one.chunk for one in order})
    column = {chunk: index for index, chunk in enumerate(chunks)}
    changes = np.zeros((1 + len(order), len(chunks) + 1), dtype=np.int64)
    for moment, one in enumerate(order, start=1):
        changes[moment, column[one.chunk]], changes[moment, -1] = _CHANGES[one.kind]
    alive = changes.cumsum(axis=0)
    of_end = np.array(chunks) % model_chunks
    late = np.minimum(-(-alive[:, -1] // len(chunks)), load.late) * splits
    ends = [alive[:, :-1] @ (of_end == end) for end in (0, model_chunks - 1)]
    numbers = np.column_stack([*ends, late, alive[:, :-1] @ counts[chunks]])
    distinct, place = np.unique(numbers, axis=0, return_inverse=True)
    loads = (
        replace(load, live_first=first, live_last=last, late=late_ones, live_layers=tuple(layers))
        for first, last, late_ones, *layers in distinct.tolist()
    )
    return tuple(loads), place.reshape(-1)
