"""The end of a step: gradients summed over the data-parallel group in buckets, and the optimizer.

All gradients of a rank lie in one flat buffer that is zeroed once per step, as Megatron-LM keeps them: every
micro-batch adds to them, and a bucket is a slice of the buffer.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from kernelcast.collector.mixed_precision import MasterAdamW, fused_adamw
from kernelcast.collector.training.marks import operator_mark


class Gradients:
    """The flat buffer of all gradients, in the parameters' dtype."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        chosen = list(parameters)
        self.buffer = torch.zeros(
            sum(p.numel() for p in chosen), dtype=chosen[0].dtype, device=chosen[0].device
        )
        start = 0
        for parameter in chosen:
            end = start + parameter.numel()
            parameter.grad = self.buffer[start:end].view_as(parameter)
            start = end

    def zero(self) -> None:
        """Before the first micro-batch of a step."""
        with operator_mark("gradient_zero"):
            self.buffer.zero_()

    def all_reduce(self, group: dist.ProcessGroup | None, bucket_entries: int) -> None:
        """Sum over the group, bucket by bucket. (The losses are scaled so that the sum is the mean.)"""
        if group is None:
            return
        for bucket in torch.split(self.buffer, bucket_entries):
            with operator_mark("dp_all_reduce"):
                dist.all_reduce(bucket, group=group)


class _Zero1(ZeroRedundancyOptimizer):
    """ZeRO-1 whose exchange of updated parameters carries a mark."""

    def _sync_params(self) -> None:
        with operator_mark("dp_all_gather"):
            super()._sync_params()  # type: ignore[misc]


class Optimizer:
    """Fused AdamW as `MasterAdamW`; with `shards_over` the update is shared by a group (ZeRO-1)."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        operator: str,
        shards_over: dist.ProcessGroup | None,
        loss_scale: float,
    ) -> None:
        self._operator = operator
        make = fused_adamw if shards_over is None else partial(_sharded_adamw, group=shards_over)
        self._optimizer = MasterAdamW(parameters, loss_scale=loss_scale, make=make)

    def step(self) -> None:
        """One update from the gradients as they are."""
        with operator_mark(self._operator):
            self._optimizer.step()


def _sharded_adamw(parameters: list[Tensor], learning_rate: float, *, group: dist.ProcessGroup) -> Any:
    return _Zero1(
        parameters,
        torch.optim.AdamW,
        process_group=group,
        parameters_as_bucket_view=True,
        lr=learning_rate,
        fused=True,
    )
