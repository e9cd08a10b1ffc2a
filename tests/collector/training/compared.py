"""What a rank of a layout holds after a step, and how far off that is from the whole model on one device."""

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kernelcast.collector.training.groups import Groups, Shard
from kernelcast.collector.training.job import TrainingJob
from kernelcast.runtime import ModelConfig, Parallelism

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of torch, about its own
    from kernelcast.collector.training import worker

Trainer = worker.Trainer

NORM = 0.25  # well below the norm of these gradients


def own(
    name: str, whole: Tensor, model: ModelConfig, index: int, parts: int, experts: tuple[int, int]
) -> Tensor:
    """A rank's part of a whole tensor."""

    def rows(block: Tensor) -> Tensor:
        return block.chunk(parts)[index]

    if name.endswith((".experts_gate_up", ".experts_down")):
        return whole.chunk(experts[1])[experts[0]]
    if parts == 1:
        return whole
    if name.endswith((".qkv", ".qkv_bias")):
        h, k = model.attention_heads * model.head_size, model.kv_heads * model.head_size
        return torch.cat([rows(part) for part in whole.split([h, k, k])])
    if name.endswith((".mlp_up", ".mlp_up_bias", ".mlp_gate_up")):
        return torch.cat([rows(part) for part in whole.chunk(2 if model.activation == "swiglu" else 1)])
    if name.endswith((".attention_output", ".mlp_down")):
        return whole.chunk(parts, dim=1)[index]
    return rows(whole) if name.startswith(("embedding.", "logits.weights.logits")) else whole


def norm(trainer: Trainer) -> float:
    """Of all gradients of one device."""
    gradients = [parameter.grad for parameter in trainer.chunks[0].parameters()]
    return float(torch.stack([one.square().sum() for one in gradients if one is not None]).sum().sqrt())


def compared(model: ModelConfig, options: dict[str, Any], cache: Any, rank: int) -> dict[str, Any] | None:
    """Losses, the norm, and the largest differences; None for a rank that the layout does not need."""
    layout = Parallelism(**{"pp": 1, "tp": 1, "dp": 1, "micro_batch": 2, "micro_batches": 4} | options)
    groups = Groups.of(layout, rank, cache)
    alone = Parallelism(pp=1, tp=1, dp=1, micro_batch=2, micro_batches=4 * layout.dp)
    if groups is None:
        return None
    cpu = torch.device("cpu")
    trainer = Trainer(
        TrainingJob(model=model, parallelism=layout, bucket_entries=1000), groups, device=cpu, seed=3
    )
    no_groups = Groups(
        stage=0, data_index=0, shard=Shard(), world=None, pipeline=None, data=None, expert_data=None  # type: ignore[arg-type]
    )  # fmt: skip
    whole = Trainer(TrainingJob(model=model, parallelism=alone), no_groups, device=cpu, seed=3)
    loss, expected_loss = torch.tensor(trainer.passes()), whole.passes()
    dist.all_reduce(loss, group=groups.world)
    found: dict[str, Any] = {"loss": [float(loss) / layout.tp, expected_loss]}
    for what in ("gradients", "clipped", "weights"):
        if what == "clipped":
            found["whole"] = [expected_loss, norm(whole)]
            trainer.clip(NORM)
            whole.clip(NORM)
            found["norm"] = norm(whole)
        if what == "weights":
            trainer._optimizer.step()
            whole._optimizer.step()
        values: dict[str, Any] = {
            name: p.detach() if what == "weights" else p.grad
            for name, p in whole.chunks[0].named_parameters()
        }
        worst, count = 0.0, 0
        for chunk, number in zip(trainer.chunks, range(groups.stage, layout.chunks, layout.pp), strict=True):
            before = sum(trainer._job.chunk_layers[:number])
            for name, parameter in chunk.named_parameters():
                head, _, tail = name.partition(".")
                if head == "layers":
                    index, _, rest = tail.partition(".")
                    name = f"layers.{before + int(index)}.{rest}"
                experts = groups.shard.experts.index, layout.ep
                expected = own(name, values[name], model, groups.shard.index, layout.tp, experts)
                mine: Any = parameter.detach() if what == "weights" else parameter.grad
                difference = (mine - expected).abs().max() / expected.abs().max().clamp_min(1e-12)
                worst, count = max(worst, float(difference)), count + mine.numel()
        found[what] = worst
    found["compared"] = count
    return found
