"""The end of a step: gradients summed over the data-parallel group in buckets, and the optimizer.

All gradients of a rank lie in one flat buffer that is zeroed once per step, as Megatron-LM keeps them: every
micro-batch adds to them, and a bucket is a slice of the buffer.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from kernelcast.collector.training.marks import operator_mark

LEARNING_RATE = 1e-4


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
    """Fused AdamW over the parameters; of 16-bit parameters over float32 copies, which are then cast back."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        operator: str,
        shards_over: dist.ProcessGroup | None,
        loss_scale: float,
    ) -> None:
        self._operator, self._loss_scale = operator, loss_scale
        self._parameters = list(parameters)
        self._has_masters = self._parameters[0].dtype != torch.float32
        self._stepped: list[Tensor] = list(self._parameters)
        if self._has_masters:
            self._stepped = [p.detach().float().requires_grad_() for p in self._parameters]
        options: dict[str, Any] = {"lr": LEARNING_RATE, "fused": True}
        self._optimizer: Any
        if shards_over is None:
            self._optimizer = torch.optim.AdamW(self._stepped, **options)
        else:
            self._optimizer = _Zero1(
                self._stepped,
                torch.optim.AdamW,
                process_group=shards_over,
                parameters_as_bucket_view=True,
                **options,
            )

    def step(self) -> None:
        """One update from the gradients as they are."""
        with operator_mark(self._operator):
            if self._has_masters:
                self._take_gradients()
            self._optimizer.step()
            if self._has_masters:
                torch._foreach_copy_([p.detach() for p in self._parameters], self._stepped)

    def _take_gradients(self) -> None:
        with torch.no_grad():
            for master, parameter in zip(self._stepped, self._parameters, strict=True):
                assert parameter.grad is not None
                master.grad = parameter.grad.float()
                if self._loss_scale != 1.0:
                    master.grad.div_(self._loss_scale)
