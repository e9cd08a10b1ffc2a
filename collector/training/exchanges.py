"""All-to-all exchanges of a forward pass, whose gradients go the same ways back."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kernelcast.collector.training.marks import operator_mark


def _exchanged(
    x: Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup, role: str
) -> Tensor:
    out = x.new_empty(sum(received), *x.shape[1:])
    with operator_mark("all_to_all", role):
        dist.all_to_all_single(out, x.contiguous(), list(received), list(sent), group=group)
    return out


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup, role: str
    ) -> Tensor:
        ctx.back = received, sent, group, role
        return _exchanged(x, sent, received, group, role)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        return _exchanged(gradients[0], *ctx.back), None, None, None, None


def exchange(
    x: Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup, role: str
) -> Tensor:
    """Rows of x [rows, …] for every process of the group, `sent` to each; answers what came, `received` from each."""
    return _Exchange.apply(x, sent, received, group, role)  # type: ignore[no-untyped-call,no-any-return]


def heads_for_tokens(
    query: Tensor, key: Tensor, value: Tensor, parts: int, group: dist.ProcessGroup
) -> tuple[Tensor, Tensor, Tensor]:
    """All heads [b, l / parts, heads, s] of a process's tokens → a part of the heads [b, l, heads / parts, s] of all.

    One message to each process holds queries, keys and values (DeepSpeed-Ulysses, arXiv 2309.14509, section 3.1).
    """
    heads = [x.shape[2] // parts for x in (query, key, value)]
    with operator_mark("copy"):
        by_process = torch.cat(
            [x.reshape(*x.shape[:2], parts, -1, x.shape[3]) for x in (query, key, value)], dim=3
        )
        sent = by_process.permute(2, 0, 1, 3, 4).contiguous()
    ones = [1] * parts
    got = exchange(sent, ones, ones, group, "context")
    with operator_mark("copy"):
        whole = got.transpose(0, 1).flatten(1, 2)
        found = whole.split_with_sizes(heads, dim=2)
    return found[0], found[1], found[2]


def tokens_for_heads(x: Tensor, parts: int, group: dist.ProcessGroup) -> Tensor:
    """The way back: [b, l, width / parts] of all tokens → [b, l / parts, width] of a process's own."""
    with operator_mark("copy"):
        sent = x.reshape(x.shape[0], parts, -1, x.shape[2]).transpose(0, 1).contiguous()
    ones = [1] * parts
    got = exchange(sent, ones, ones, group, "context")
    with operator_mark("copy"):
        return got.permute(1, 2, 0, 3).flatten(2)
