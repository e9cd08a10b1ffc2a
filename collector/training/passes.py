"""The forward and backward passes of one step: on one stage in turn, on several under a pipeline schedule."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from kernelcast.collector.training.job import TrainingJob
from kernelcast.collector.training.marks import BACKWARD, FORWARD, LOSS, marked
from kernelcast.collector.training.model import Chunk

Passes = Callable[[Tensor, Tensor], float]
"""Takes token ids and targets [b · m, l]; returns the step's loss, 0 on ranks without the last stage."""


class _MarkedStage(PipelineStage):
    """A pipeline stage whose passes carry marks in a trace."""

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with marked(FORWARD):
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with marked(BACKWARD):
            return super().backward_one_chunk(*args, **kwargs)


def single_stage(chunk: Chunk, micro_batches: int, loss_factor: float) -> Passes:
    """Forward and backward of each micro-batch in turn, the same in all schedules on one stage."""

    def passes(tokens: Tensor, targets: Tensor) -> float:
        losses = []
        for ids, wanted in zip(tokens.chunk(micro_batches), targets.chunk(micro_batches), strict=True):
            with marked(FORWARD):
                logits = chunk(ids)
            with marked(LOSS):
                loss = chunk.loss(logits, wanted) * loss_factor
            with marked(BACKWARD):
                loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        return float(torch.stack(losses).sum())

    return passes


def pipeline(
    chunks: Sequence[Chunk],
    job: TrainingJob,
    *,
    stage: int,
    group: dist.ProcessGroup,
    device: torch.device,
    dtype: torch.dtype,
    loss_factor: float,
) -> Passes:
    """The job's schedule over its stages; `chunks` are this rank's, in the order of the model."""
    layout, model = job.parallelism, job.model
    b, length = layout.micro_batch, model.sequence_length // layout.cp
    hidden = torch.empty(b, length, model.hidden_size, device="meta", dtype=dtype, requires_grad=True)
    ids = torch.empty(b, length, dtype=torch.int64, device="meta")
    logits_size = (b, length, job.vocabulary_size // layout.tp)
    logits = torch.empty(*logits_size, device="meta", dtype=dtype, requires_grad=True)
    stages = [
        _MarkedStage(
            chunk,
            index,
            layout.chunks,
            device,
            input_args=(ids if index == 0 else hidden,),
            output_args=(logits if index == layout.chunks - 1 else hidden,),
            group=group,
        )
        for index, chunk in zip(range(stage, layout.chunks, layout.pp), chunks, strict=True)
    ]

    def loss_of(output: Tensor, targets: Tensor) -> Tensor:
        with marked(LOSS):
            return chunks[-1].loss(output, targets) * loss_factor

    schedule = _schedule(job, stages, loss_of)

    def passes(tokens: Tensor, targets: Tensor) -> float:
        losses: list[Tensor] = []
        given = (tokens,) if stage == 0 else ()
        if stage == layout.pp - 1:
            schedule.step(*given, target=targets, losses=losses, return_outputs=False)
        else:
            schedule.step(*given, return_outputs=False)
        return float(torch.stack([loss.detach() for loss in losses]).sum()) if losses else 0.0

    return passes


def _schedule(job: TrainingJob, stages: list[Any], loss_of: Callable[[Tensor, Tensor], Tensor]) -> Any:
    layout = job.parallelism
    options: dict[str, Any] = {"loss_fn": loss_of, "scale_grads": False}
    if layout.schedule == "interleaved":
        return ScheduleInterleaved1F1B(stages, layout.micro_batches, **options)
    kind = ScheduleGPipe if layout.schedule == "gpipe" else Schedule1F1B
    return kind(stages[0], layout.micro_batches, **options)
