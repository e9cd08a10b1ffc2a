"""Communication inside a model, with its gradients: all-to-all exchanges, and the sums of tensor parallelism.

Gradients of an all-to-all take the way back. `enter` and `leave` are Megatron-LM's f and g (arXiv 1909.08053, section
3): activations that enter and leave a tensor-parallel region.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kernelcast.collector.training.groups import Part
from kernelcast.collector.training.marks import operator_mark


def _exchanged(
    x: Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup | None, role: str
) -> Tensor:
    out = x.new_empty(sum(received), *x.shape[1:])
    with operator_mark("all_to_all", role):
        dist.all_to_all_single(out, x.contiguous(), list(received), list(sent), group=group)
    return out


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        sent: Sequence[int],
        received: Sequence[int],
        group: dist.ProcessGroup | None,
        role: str,
    ) -> Tensor:
        ctx.back = received, sent, group, role
        return _exchanged(x, sent, received, group, role)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        return _exchanged(gradients[0], *ctx.back), None, None, None, None


def exchange(
    x: Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup | None, role: str
) -> Tensor:
    """Send rows of x [rows, …] to every process of the group, `sent` to each; gives the rows `received` from each."""
    return _Exchange.apply(x, sent, received, group, role)  # type: ignore[no-untyped-call,no-any-return]


def heads_for_tokens(heads: tuple[Tensor, Tensor, Tensor], part: Part) -> tuple[Tensor, ...]:
    """All heads of this process's tokens [b, l / parts, heads, s] → its heads of all tokens [b, l, heads / parts, s].

    `heads` are queries, keys and values: one message to each process holds all three (DeepSpeed-Ulysses, arXiv
    2309.14509, section 3.1).
    """
    with operator_mark("copy"):
        by_process = torch.cat([x.reshape(*x.shape[:2], part.parts, -1, x.shape[3]) for x in heads], dim=3)
        sent = by_process.permute(2, 0, 1, 3, 4).contiguous()
    ones = [1] * part.parts
    got = exchange(sent, ones, ones, part.group, "context")
    with operator_mark("copy"):
        whole = got.transpose(0, 1).flatten(1, 2)
        return whole.split_with_sizes([x.shape[2] // part.parts for x in heads], dim=2)


def tokens_for_heads(x: Tensor, part: Part) -> Tensor:
    """The way back: its heads of all tokens [b, l, width / parts] → all heads of its tokens [b, l / parts, width]."""
    with operator_mark("copy"):
        sent = x.reshape(x.shape[0], part.parts, -1, x.shape[2]).transpose(0, 1).contiguous()
    ones = [1] * part.parts
    got = exchange(sent, ones, ones, part.group, "context")
    with operator_mark("copy"):
        return got.permute(1, 2, 0, 3).flatten(2)


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
    """The input x of column-parallel linears; unchanged without a group."""
    return x if group is None else _Enter.apply(x, group)  # type: ignore[no-untyped-call]


def leave(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The sum of the group's partial x after a row-parallel linear, in place; unchanged without a group."""
    return x if group is None else _Leave.apply(x, group)  # type: ignore[no-untyped-call]
