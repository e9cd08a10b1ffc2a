"""One rank of a real training job: trains a GPT for some steps and times them. Started under torchrun by training.py.

A step is: gradients dropped, `micro_batches` forward and backward passes (1F1B over the stages), fused AdamW. Its time
is a wall clock from a barrier to the end of the slowest rank.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.profiler import record_function

from kernelcast.collector.attribution import attribute
from kernelcast.collector.gpt import build_stage
from kernelcast.collector.harness import profiled, synchronise
from kernelcast.collector.host_memory import keep_freed_memory
from kernelcast.collector.kineto import ANNOTATION_CATEGORY
from kernelcast.collector.layers import token_loss
from kernelcast.runtime import ModelConfig
from kernelcast.store import quiet_us

TRACED_STEPS = 3

FORWARD, LOSS, BACKWARD, OPTIMIZER = (
    "kernelcast.stage_forward",
    "kernelcast.loss",
    "kernelcast.stage_backward",
    "kernelcast.optimizer",
)


class _MarkedStage(PipelineStage):
    """A pipeline stage whose passes carry marks in a trace."""

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with record_function(FORWARD):
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with record_function(BACKWARD):
            return super().backward_one_chunk(*args, **kwargs)


def _marked_loss(logits: Tensor, targets: Tensor) -> Tensor:
    with record_function(LOSS):
        return token_loss(logits, targets)


def _single_stage_step(module: nn.Module, micro_batches: int) -> Callable[[Tensor, Tensor], None]:
    """Forward and backward of each micro-batch in turn, as 1F1B does on one stage."""

    def passes(tokens: Tensor, targets: Tensor) -> None:
        for ids, wanted in zip(tokens.chunk(micro_batches), targets.chunk(micro_batches), strict=True):
            with record_function(FORWARD):
                logits = module(ids)
            loss = _marked_loss(logits, wanted)
            with record_function(BACKWARD):
                loss.backward()  # type: ignore[no-untyped-call]

    return passes


def _pipeline_step(
    module: nn.Module, config: dict[str, Any], model: ModelConfig, device: torch.device
) -> Callable[[Tensor, Tensor], None]:
    stage_index, stages = dist.get_rank(), dist.get_world_size()
    b, length = config["micro_batch"], model.sequence_length
    hidden = torch.empty(b, length, model.hidden_size, device="meta", requires_grad=True)
    first = torch.empty(b, length, dtype=torch.int64, device="meta")
    last = torch.empty(b, length, config["vocabulary_size"], device="meta", requires_grad=True)
    stage = _MarkedStage(
        module,
        stage_index,
        stages,
        device,
        input_args=(first if stage_index == 0 else hidden,),
        output_args=(last if stage_index == stages - 1 else hidden,),
    )
    schedule = Schedule1F1B(stage, config["micro_batches"], loss_fn=_marked_loss, scale_grads=False)

    def passes(tokens: Tensor, targets: Tensor) -> None:
        if stage_index == 0:
            schedule.step(tokens, return_outputs=False)
        elif stage_index == stages - 1:
            schedule.step(target=targets, return_outputs=False)
        else:
            schedule.step(return_outputs=False)

    return passes


@contextmanager
def _process_group(backend: str) -> Iterator[None]:
    dist.init_process_group(backend)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _slowest(seconds: float, device: torch.device) -> float:
    longest = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return float(longest)


def _run(config: dict[str, Any]) -> dict[str, Any] | None:
    """Train and time; the result on rank 0."""
    rank, stages = dist.get_rank(), dist.get_world_size()
    device = (
        torch.device(config["device"], rank % torch.cuda.device_count())
        if config["device"] == "cuda"
        else torch.device("cpu")
    )
    torch.manual_seed(config["seed"])
    model = ModelConfig(**config["model"])
    module = build_stage(
        model, encoders=config["stage_encoders"], stage=rank, vocabulary_size=config["vocabulary_size"]
    ).to(device)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
    micro_batches = config["micro_batches"]
    passes = (
        _single_stage_step(module, micro_batches)
        if stages == 1
        else _pipeline_step(module, config, model, device)
    )
    size = (config["micro_batch"] * micro_batches, model.sequence_length)
    tokens = torch.randint(model.vocabulary_size, size, device=device)
    targets = torch.randint(model.vocabulary_size, size, device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        passes(tokens, targets)
        with record_function(OPTIMIZER):
            optimizer.step()
        synchronise(device)

    for _ in range(config["warm_up_steps"]):
        step()
    steps_s = []
    for _ in range(config["steps"]):
        dist.barrier()
        start = time.perf_counter()
        step()
        steps_s.append(_slowest(time.perf_counter() - start, device))
    components: list[dict[str, float]] = [{}] * stages
    dist.all_gather_object(components, _traced_components(step, device))
    return {"steps_s": steps_s, "stages": components} if rank == 0 else None


def _traced_components(step: Callable[[], None], device: torch.device) -> dict[str, float]:
    """Quiet seconds (10th percentile over a few traced steps) of this rank's passes per micro-batch, and optimizer."""

    def traced_steps() -> None:
        for _ in range(TRACED_STEPS):
            dist.barrier()
            step()

    trace = profiled(device, traced_steps)
    if device.type == "cuda":
        spans = [(work.mark, work.time_us) for work in attribute(trace, "kernelcast.")]
    else:
        spans = [
            (e.name, e.duration_us)
            for e in trace.of_category(ANNOTATION_CATEGORY)
            if e.name.startswith("kernelcast.")
        ]

    def quiet_s(mark: str) -> float:
        times = [us for name, us in spans if name == mark]
        return quiet_us(times) / 1e6 if times else 0.0

    return {
        "forward_s": quiet_s(FORWARD) + quiet_s(LOSS),
        "backward_s": quiet_s(BACKWARD),
        "optimizer_s": quiet_s(OPTIMIZER),
    }


def main() -> None:
    """Entry of one rank: reads its configuration, runs, and rank 0 writes the result."""
    config = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(config["threads"])
    if config["device"] == "cpu":
        keep_freed_memory()
    with _process_group(config["backend"]):
        result = _run(config)
    if result is not None:
        Path(sys.argv[2]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
