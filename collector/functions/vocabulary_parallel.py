"""Masks and loss on a shard of the vocabulary under tensor parallelism (arXiv 1909.08053, section 3).

Every device holds `rows` rows of the embedding matrix, or columns of the logits, starting at row `first_row` of the
vocabulary. Without a process group nothing is summed over devices: one device's work is measured that way, and a shard
that is the whole vocabulary needs no sum.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def local_rows(ids: Tensor, first_row: int, rows: int) -> tuple[Tensor, Tensor]:
    """Row indices within the shard (0 for ids of other shards), and a mask of the ids of other shards."""
    local = ids - first_row
    elsewhere = (local < 0) | (local >= rows)
    return local.masked_fill(elsewhere, 0), elsewhere


def mask_rows(x: Tensor, elsewhere: Tensor) -> Tensor:
    """X [b, l, d] with zeros where `elsewhere` [b, l]."""
    return x.masked_fill(elsewhere[..., None], 0.0)


def vocabulary_parallel_cross_entropy(
    logits: Tensor, targets: Tensor, first_row: int, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Cross-entropy of every token, float32 [b, l], from logits [b, l, rows] of one shard and targets [b, l].

    The softmax is in float32 for any type of logits. With a group the maxima, the targets' logits and the sums of
    exponentials are reduced: three all-reduces of b · l entries, forward only. Without a group, a target of another
    shard contributes 0. Backward runs once only: it turns the saved softmax into the gradient in place.
    """
    loss: Tensor = _CrossEntropy.apply(logits, targets, first_row, group)  # type: ignore[no-untyped-call]
    return loss


class _CrossEntropy(torch.autograd.Function):
    """Softmax minus one-hot, written by hand: autograd would save the logits twice."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, first_row: int, group: dist.ProcessGroup | None
    ) -> Tensor:
        maximum = logits.amax(dim=-1, keepdim=True).float()
        if group is not None:
            dist.all_reduce(maximum, dist.ReduceOp.MAX, group=group)
        shifted = logits - maximum  # float32 from here on
        local, elsewhere = local_rows(targets, first_row, logits.shape[-1])
        local = local.unsqueeze(-1)
        wanted = shifted.gather(-1, local).squeeze(-1).masked_fill_(elsewhere, 0.0)
        softmax = shifted.exp_()
        total = softmax.sum(dim=-1)
        if group is not None:
            dist.all_reduce(wanted, group=group)
            dist.all_reduce(total, group=group)
        softmax.div_(total.unsqueeze(-1))
        ctx.save_for_backward(softmax, local, elsewhere)
        ctx.dtype = logits.dtype
        return total.log_().sub_(wanted)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        softmax, local, elsewhere = ctx.saved_tensors
        # Subtract one at the target's entry, on the device that holds it.
        softmax.scatter_add_(-1, local, (~elsewhere).to(softmax.dtype).neg_().unsqueeze(-1))
        softmax.mul_(gradients[0].unsqueeze(-1))
        return softmax.to(ctx.dtype), None, None, None
