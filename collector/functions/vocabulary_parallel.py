"""Embedding and loss on a shard of the vocabulary, as tensor parallelism cuts them (arXiv 1909.08053, section 3).

Every device holds `rows` of the embedding matrix, or as many columns of the logits, from row `first_row` of the
vocabulary on. Without a process group nothing is summed over devices: that is how one device's work is measured
alone. A group of one shard, the whole vocabulary, needs none.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


def vocabulary_parallel_embedding(
    ids: Tensor, weight: Tensor, first_row: int | None, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Rows of weight [rows, d] for ids [b, l] → [b, l, d]; ids of other shards give zeros before the sum over `group`.

    `first_row` None says that `weight` is the whole vocabulary: no id is masked, as Megatron does it on one device.
    """
    if first_row is None:
        return F.embedding(ids, weight)
    local, elsewhere = local_rows(ids, first_row, weight.shape[0])
    out = mask_rows(F.embedding(local, weight), elsewhere)
    if group is not None:
        out = _SumForward.apply(out, group)  # type: ignore[no-untyped-call]
    return out


def local_rows(ids: Tensor, first_row: int, rows: int) -> tuple[Tensor, Tensor]:
    """Row numbers within the shard (0 for ids of other shards), and which ids are of other shards."""
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

    The softmax is in float32 whatever the logits are. With a group the maxima, the targets' logits and the sums of
    exponentials are combined: three all-reduces of b · l entries, forward only. Without one, a target of another shard
    contributes 0. Backward can run once: it turns the kept softmax into the gradient.
    """
    loss: Tensor = _CrossEntropy.apply(logits, targets, first_row, group)  # type: ignore[no-untyped-call]
    return loss


class _CrossEntropy(torch.autograd.Function):
    """Softmax minus one-hot, by hand: what autograd would record keeps the logits twice."""

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
        # One is taken off the target's entry, on the device that has it.
        softmax.scatter_add_(-1, local, (~elsewhere).to(softmax.dtype).neg_().unsqueeze(-1))
        softmax.mul_(gradients[0].unsqueeze(-1))
        return softmax.to(ctx.dtype), None, None, None


class _SumForward(torch.autograd.Function):
    """Sum over a group forward, nothing backward: every device goes on with the same activations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.mark_dirty(x)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
