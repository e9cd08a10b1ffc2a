"""One rank of real training jobs: builds each, times its steps, traces some. Started by steps.py under torchrun.

A step is: gradients zeroed, `micro_batches` forward and backward passes, gradients summed over the data-parallel group
and clipped, optimizer. Its time is a wall clock from a barrier to the end of the slowest rank. The jobs take turns in
rounds, and process 0 writes a line for each turn as soon as it is over.
"""

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kernelcast.collector.functions.clipping import MOST_NORM
from kernelcast.collector.measuring.core_binding import bind, own_cores
from kernelcast.collector.measuring.gloo_threads import calm_gloo
from kernelcast.collector.measuring.harness import profiled, synchronise
from kernelcast.collector.measuring.host_memory import keep_freed_memory
from kernelcast.collector.measuring.reference import Reference
from kernelcast.collector.training.groups import GroupCache, Groups
from kernelcast.collector.training.job import TrainingJob
from kernelcast.collector.training.marks import STEP, marked, marks_shown
from kernelcast.collector.training.model import Chunk
from kernelcast.collector.training.passes import Passes, pipeline, single_stage
from kernelcast.collector.training.rank_trace import rank_trace
from kernelcast.collector.training.shard import Part, Shard
from kernelcast.collector.training.update import Gradients, Optimizer
from kernelcast.runtime.step.chunks import chunks_of, stage_kinds

TRACED_STEPS = 3
_FLOAT16_LOSS_SCALE = 1024.0
# The process that started this one ends a turn that takes too long, with one line; torch comes after it.
_TORCH_EXTRA_S = 60.0


class Trainer:
    """One rank's part of one job, ready to step."""

    def __init__(self, job: TrainingJob, groups: Groups, *, device: torch.device, seed: int) -> None:
        layout, model = job.parallelism, job.model
        dtype: torch.dtype = getattr(torch, job.dtype)
        self._job, self._groups, self._device = job, groups, device
        shard = Shard(
            index=groups.tensor_index,
            parts=layout.tp,
            group=groups.tensor,
            context=Part(index=groups.context_index, parts=layout.cp, group=groups.context),
            experts=Part(index=groups.expert_index, parts=layout.ep, group=groups.experts),
        )
        self._loss_scale = scale = _FLOAT16_LOSS_SCALE if dtype == torch.float16 else 1.0
        # The sum over micro-batches and replicas is then the mean.
        factor = scale / (layout.micro_batches * layout.replicas)
        counts = job.chunk_layers
        self.chunks = [
            Chunk(
                model,
                first_layer=sum(counts[:index]),
                layers=counts[index],
                vocabulary_size=job.vocabulary_size,
                is_first=index == 0,
                is_last=index == len(counts) - 1,
                shard=shard,
                recompute=layout.recompute,
                loss_scale=factor,
                seed=seed,
            ).to(device, dtype)
            for index in range(groups.stage, layout.chunks, layout.pp)
        ]
        parameters = [p for chunk in self.chunks for p in chunk.parameters()]
        self.gradients = Gradients(
            parameters,
            [p for chunk in self.chunks for p in chunk.replicated],
            [p for chunk in self.chunks for p in chunk.experts],
        )
        kind = stage_kinds(chunks_of(job.model, layout), layout.pp)[groups.stage]
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
        length = model.sequence_length // layout.cp
        whole = whole.narrow(-1, self._groups.context_index * length, length)
        return whole[0].contiguous().to(self._device), whole[1].contiguous().to(self._device)

    def passes(self) -> float:
        """Gradients of one batch, summed over the data-parallel group; answers this rank's part of the loss."""
        self.gradients.zero()
        loss = self._passes(self._tokens, self._targets)
        self.gradients.all_reduce(
            self._groups.data, self._job.bucket_entries, expert_group=self._groups.expert_data
        )
        return loss

    def clip(self, most_norm: float = MOST_NORM) -> None:
        """Clip the summed gradients to a norm, before which the scale of the loss does not count."""
        layout = self._job.parallelism
        self.gradients.clip(
            self._groups.world if layout.world_size > 1 else None,
            copies=layout.replicas,
            expert_copies=layout.expert_replicas,
            counts_replicated=self._groups.tensor_index == 0,
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
        """What a few steps under the profiler show of this rank."""

        def steps() -> None:
            for _ in range(TRACED_STEPS):
                dist.barrier(group=self._groups.world)
                self.step()

        with marks_shown():
            return rank_trace(profiled(self._device, steps), stage=self._groups.stage)


def _turn(
    trainer: Trainer, request: dict[str, Any], reference: Reference, *, is_traced: bool
) -> dict[str, Any]:
    """Timed steps of one job, a reference product before each on process 0; and a trace."""
    for _ in range(request["warm_up_steps"]):
        trainer.step()
    steps_s, reference_us = [], []
    for _ in range(request["steps"]):
        if dist.get_rank() == 0:
            reference_us.append(reference.time_us())
        steps_s.append(trainer.timed_step())
    return {
        "steps_s": steps_s,
        "reference_us": reference_us,
        "trace": trainer.traced() if is_traced else None,
    }


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


def _run(request: dict[str, Any], timeout: timedelta, write: Callable[[dict[str, Any]], None]) -> None:
    rank, cache = dist.get_rank(), GroupCache(timeout)
    device = _device(request["device"], rank)
    jobs = [TrainingJob.from_dict(values) for values in request["jobs"]]
    reference = Reference(device, torch.float32)
    all_ranks = cache.of(tuple(range(dist.get_world_size())))
    for turn in range(request["rounds"]):
        for number, job in enumerate(jobs):
            groups = Groups.of(job.parallelism, rank, cache)
            found: list[Any] = [None] * job.parallelism.world_size
            if groups is not None:
                torch.manual_seed(request["seed"])
                trainer = Trainer(job, groups, device=device, seed=request["seed"])
                # The last turn is traced: profiling may leave things behind that slow what follows.
                is_traced = request["traced"] and turn == request["rounds"] - 1
                own = _turn(trainer, request, reference, is_traced=is_traced)
                dist.all_gather_object(found, own, group=groups.world)
                del trainer
                gc.collect()
            if rank == 0:
                first = found[0]
                write(
                    {
                        "job": number,
                        "round": turn,
                        "steps_s": first["steps_s"],
                        "reference_us": first["reference_us"],
                        "traces": [one["trace"] for one in found] if first["trace"] else None,
                    }
                )
            dist.barrier(group=all_ranks)


def main() -> None:
    """Entry of one rank: reads the request, runs the jobs, process 0 writes a line for every turn."""
    request = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(request["threads"])
    if request["device"] == "cpu":
        number, processes = (int(os.environ[name]) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
        bind(own_cores(number, processes, threads=request["threads"]))
        keep_freed_memory()
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    timeout = timedelta(seconds=request["timeout_s"] + _TORCH_EXTRA_S)
    with Path(sys.argv[2]).open("a") as lines, _process_group(request["backend"], timeout):

        def write(line: dict[str, Any]) -> None:
            lines.write(json.dumps(line) + "\n")
            lines.flush()

        _run(request, timeout, write)


if __name__ == "__main__":
    main()
