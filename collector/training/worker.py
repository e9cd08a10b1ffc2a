"""One rank of real training jobs: builds each, times its steps, traces some. Started by steps.py under torchrun.

A step: gradients zeroed, `micro_batches` forward and backward passes, gradients summed over the data-parallel group
and clipped, optimizer. Its time is a wall clock from a barrier to the end of the slowest rank. The jobs take turns in
rounds, and process 0 writes a line for each turn as soon as it is over.
"""

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from kernelcast.collector.functions.update import MOST_NORM
from kernelcast.collector.measuring.core_binding import bind, own_cores
from kernelcast.collector.measuring.disturbance import Reference
from kernelcast.collector.measuring.gloo_threads import calm_gloo
from kernelcast.collector.measuring.harness import profiled, synchronise
from kernelcast.collector.measuring.host_memory import keep_freed_memory
from kernelcast.collector.training.groups import GroupCache, Groups
from kernelcast.collector.training.job import TrainingEffort, TrainingJob, TrainingRequest, Turn
from kernelcast.collector.training.marks import STEP, marked, marks_shown
from kernelcast.collector.training.model import Chunk
from kernelcast.collector.training.passes import Passes, pipeline, single_stage
from kernelcast.collector.training.rank_trace import rank_trace
from kernelcast.collector.training.update import Gradients, Optimizer
from kernelcast.runtime.step.chunks import stage_kinds

TRACED_STEPS = 3
_FLOAT16_LOSS_SCALE = 1024.0
# The parent process ends a turn that takes too long, with one line; torch's own limit comes later.
_TORCH_EXTRA_S = 60.0


class Trainer:
    """One rank's part of one job, ready to step."""

    def __init__(self, job: TrainingJob, groups: Groups, *, device: torch.device, seed: int) -> None:
        layout = job.parallelism
        dtype: torch.dtype = getattr(torch, job.dtype)
        self._job, self._groups, self._device = job, groups, device
        self._loss_scale = scale = _FLOAT16_LOSS_SCALE if dtype == torch.float16 else 1.0
        # The sum over micro-batches and replicas is then the mean.
        factor = scale / (layout.micro_batches * layout.replicas)
        self.chunks = [
            Chunk(job, index, groups.shard, loss_scale=factor, seed=seed).to(device, dtype)
            for index in range(groups.stage, layout.chunks, layout.pp)
        ]
        parameters = [p for chunk in self.chunks for p in chunk.parameters()]
        self.gradients = Gradients(
            parameters,
            [p for chunk in self.chunks for p in chunk.parameters_of("replicated")],
            [p for chunk in self.chunks for p in chunk.parameters_of("experts")],
        )
        kind = stage_kinds(job.model, layout)[groups.stage]
        self._optimizer = Optimizer(
            parameters,
            role=kind.optimizer_role,
            shards_over=groups.data if layout.zero else None,
            loss_scale=scale,
        )
        self._passes: Passes
        if groups.pipeline is None:
            self._passes = single_stage(self.chunks[0], layout.micro_batches, factor)
        else:
            self._passes = pipeline(
                self.chunks,
                job,
                stage=groups.stage,
                group=groups.pipeline,
                device=device,
                dtype=dtype,
                loss_factor=factor,
            )
        self._tokens, self._targets = self._batch(seed)

    def _batch(self, seed: int) -> tuple[Tensor, Tensor]:
        """This rank's share of the synthetic tokens, which are the same in every layout of one batch size."""
        layout, model = self._job.parallelism, self._job.model
        generator = torch.Generator()
        generator.manual_seed(seed)
        size = (2, layout.dp, layout.micro_batch * layout.micro_batches, model.sequence_length)
        whole = torch.randint(model.vocabulary_size, size, generator=generator)[:, self._groups.data_index]
        whole = whole[..., self._groups.shard.context.of(model.sequence_length)]
        return whole[0].contiguous().to(self._device), whole[1].contiguous().to(self._device)

    def passes(self) -> float:
        """Gradients of one batch, summed over the data-parallel group; returns this rank's part of the loss."""
        self.gradients.zero()
        loss = self._passes(self._tokens, self._targets)
        self.gradients.all_reduce(
            self._groups.data, self._job.bucket_entries, expert_group=self._groups.expert_data
        )
        return loss

    def clip(self, most_norm: float = MOST_NORM) -> None:
        """Clip the summed gradients to a norm, which does not include the scale of the loss."""
        layout = self._job.parallelism
        self.gradients.clip(
            self._groups.world if layout.world_size > 1 else None,
            copies=layout.replicas,
            expert_copies=layout.expert_replicas,
            counts_replicated=self._groups.shard.index == 0,
            most_norm=most_norm * self._loss_scale,
        )

    def step(self) -> None:
        """One whole step."""
        with marked(STEP):
            self.passes()
            self.clip()
            self._optimizer.step()
            synchronise(self._device)

    def timed_step(self) -> float:
        """Seconds from a barrier to the end of the slowest rank."""
        dist.barrier(group=self._groups.world)
        start = time.perf_counter()
        self.step()
        longest = torch.tensor(
            time.perf_counter() - start, dtype=torch.float64 if self._device.type == "cpu" else torch.float32
        ).to(self._device)
        dist.all_reduce(longest, dist.ReduceOp.MAX, group=self._groups.world)
        return float(longest)

    def traced(self) -> dict[str, Any]:
        """A summary of this rank over a few steps under the profiler."""

        def steps() -> None:
            for _ in range(TRACED_STEPS):
                dist.barrier(group=self._groups.world)
                self.step()

        with marks_shown():
            return rank_trace(profiled(self._device, steps), stage=self._groups.stage)


def _timed_steps(
    trainer: Trainer, effort: TrainingEffort, reference: Reference
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds of each timed step and, on process 0, µs of a reference product before each."""
    for _ in range(effort.warm_up_steps):
        trainer.step()
    steps_s, reference_us = [], []
    for _ in range(effort.steps):
        if dist.get_rank() == 0:
            reference_us.append(reference.time_us())
        steps_s.append(trainer.timed_step())
    return tuple(steps_s), tuple(reference_us)


def _device(kind: str, rank: int) -> torch.device:
    if kind != "cuda":
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


@contextmanager
def _process_group(backend: str, timeout: timedelta) -> Iterator[None]:
    dist.init_process_group(backend, timeout=timeout)
    calm_gloo()
    try:
        yield
    finally:
        dist.destroy_process_group()


def _run(request: TrainingRequest, timeout: timedelta, write: Callable[[Turn], None]) -> None:
    rank, cache = dist.get_rank(), GroupCache(timeout)
    device, effort = _device(request.device, rank), request.effort
    reference = Reference(device, torch.float32)
    all_ranks = cache.of(tuple(range(dist.get_world_size())))
    for turn in range(effort.rounds):
        # The last turn is traced: profiling may leave things behind that slow what follows.
        is_traced = effort.traced and turn == effort.rounds - 1
        for number, job in enumerate(request.jobs):
            groups = Groups.of(job.parallelism, rank, cache)
            if groups is not None:
                torch.manual_seed(request.seed)
                trainer = Trainer(job, groups, device=device, seed=request.seed)
                steps_s, reference_us = _timed_steps(trainer, effort, reference)
                traces: list[Any] = [None] * job.parallelism.world_size
                dist.all_gather_object(traces, trainer.traced() if is_traced else None, group=groups.world)
                if rank == 0:
                    own = tuple(traces) if is_traced else ()
                    write(
                        Turn(job=number, round=turn, steps_s=steps_s, reference_us=reference_us, traces=own)
                    )
                del trainer
                gc.collect()
            dist.barrier(group=all_ranks)


def main() -> None:
    """Run one rank: read the request, run the jobs; process 0 writes a line for every turn."""
    request = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=TrainingRequest)
    torch.set_num_threads(request.threads)
    if request.device == "cpu":
        number, processes = (int(os.environ[name]) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
        bind(own_cores(number, processes, threads=request.threads))
        keep_freed_memory()
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    timeout = timedelta(seconds=request.timeout_s + _TORCH_EXTRA_S)
    backend = "nccl" if request.device == "cuda" else "gloo"
    with Path(sys.argv[2]).open("ab") as lines, _process_group(backend, timeout):

        def write(turn: Turn) -> None:
            lines.write(msgspec.json.encode(turn) + b"\n")
            lines.flush()

        _run(request, timeout, write)


if __name__ == "__main__":
    main()
