"""Activations that enter and leave a tensor-parallel region (Megatron-LM's f and g, arXiv 1909.08053, section 3)."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kernelcast.collector.training.marks import operator_mark


def _summed(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    with operator_mark("all_reduce", "tensor"):
        dist.all_reduce(x, group=group)
    return x


class _Enter(torch.autograd.Function):
    """Forward nothing; backward the sum of the group's gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _summed(gradients[0].contiguous(), ctx.group), None


class _Leave(torch.autograd.Function):
    """Forward the sum of the group's parts, in place; backward nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        # Not marked as dirty: nothing else reads the product that x is a view of, and a dirty view costs copies.
        return _summed(x, group).view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def enter(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """X as the input of column-parallel linears; without a group x itself."""
    return x if group is None else _Enter.apply(x, group)  # type: ignore[no-untyped-call]


def leave(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The sum of the group's partial x, as after a row-parallel linear; x is overwritten. Without a group x itself."""
    return x if group is None else _Leave.apply(x, group)  # type: ignore[no-untyped-call]
