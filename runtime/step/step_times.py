"""From a decomposition and its operators' times to the durations of every pass, transfer and update of a step."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kernelcast.runtime.answers.operator_times import Question, total_us
from kernelcast.runtime.pipeline.durations import Durations
from kernelcast.runtime.step.decomposition import Block, Calls, Decomposition
from kernelcast.runtime.step.stage_times import BlockTimes, ChunkTimes, Times, chunk_times

_WEIGHT_SHARE = 0.5
"""Of a linear's backward pass, two products of equal cost (operator table), one is the gradient of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Times of a step in µs: one layer [configs], the durations, and the update taken apart [configs, stages]."""

    layer: BlockTimes
    durations: Durations
    optimizer_us: Times
    gather_us: Times

    def stages_us(self, per_chunk: Times) -> Times:
        """Sums over the chunks of each stage, [configs, stages]; chunk c runs on stage c mod pp."""
        configs, stages = self.optimizer_us.shape
        summed: Times = per_chunk.reshape(configs, -1, stages).sum(axis=1)
        return summed

    @property
    def forward_us(self) -> Times:
        """Forward pass of a stage with its sends, one micro-batch, [configs, stages]."""
        return self.stages_us(self.durations.forward_us + self.durations.send_forward_us)

    @property
    def backward_us(self) -> Times:
        """Whole backward pass of a stage with its sends, one micro-batch, [configs, stages]."""
        times = self.durations
        return self.stages_us(times.backward_us + times.weight_us + times.send_backward_us)


def step_times(parts: Decomposition, times_us: Mapping[Question, Times]) -> StepTimes:
    """Add the operators' times, float64 [configs] each, up to the durations of the parts of a step."""
    first, layer, last = (
        _block_times(block, times_us, split=parts.split) for block in (parts.first, parts.layer, parts.last)
    )
    known: dict[tuple[bool, int, bool], ChunkTimes] = {}
    for chunk in parts.chunks:
        kind = chunk.first, chunk.layers, chunk.last
        if kind not in known:
            known[kind] = chunk_times(
                first=first if chunk.first else None,
                layer=layer,
                layers=chunk.layers,
                last=last if chunk.last else None,
                sharded=parts.sharded,
                split=parts.split,
            )
    chunks = [known[chunk.first, chunk.layers, chunk.last] for chunk in parts.chunks]
    nothing = np.zeros_like(layer.forward_us)
    forward_send, backward_send = (
        total_us(calls, times_us) for calls in (parts.send_forward, parts.send_backward)
    )
    remembered: dict[Calls, Times] = {}

    def update_us(calls: Calls) -> Times:
        if calls not in remembered:
            remembered[calls] = total_us(calls, times_us)
        return remembered[calls]

    optimizer_us = _columns([update_us(stage.update.optimizer) for stage in parts.stages])
    gather_us = _columns([update_us(stage.update.gather) for stage in parts.stages])
    return StepTimes(
        layer=layer,
        durations=Durations(
            forward_us=_columns([chunk.forward_us for chunk in chunks]),
            backward_us=_columns([chunk.backward_us for chunk in chunks]),
            weight_us=_columns([chunk.weight_us for chunk in chunks]),
            send_forward_us=_columns([nothing if chunk.last else forward_send for chunk in parts.chunks]),
            send_backward_us=_columns([nothing if chunk.first else backward_send for chunk in parts.chunks]),
            all_reduce_us=_columns([update_us(stage.update.gradients) for stage in parts.stages]),
            update_us=optimizer_us + gather_us,
        ),
        optimizer_us=optimizer_us,
        gather_us=gather_us,
    )


def _block_times(block: Block, times_us: Mapping[Question, Times], *, split: bool) -> BlockTimes:
    nothing = np.zeros_like(next(iter(times_us.values())))
    linears = [call for call in block.backward if call.is_linear_backward] if split else []
    return BlockTimes(
        forward_us=total_us(block.forward, times_us),
        backward_us=total_us(block.backward, times_us),
        weight_us=_WEIGHT_SHARE * total_us(linears, times_us) if linears else nothing,
        gather_us=total_us(block.gather_forward, times_us),
        scatter_us=total_us(block.scatter, times_us),
    )


def _columns(times: list[Times]) -> Times:
    return np.stack(times, axis=1)
