"""The tensor functions of a mixture of experts, shared by the benches and the model that trains for real."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelcast.runtime.request.fields import Router

BALANCING = 1e-2
"""Weight of the loss that balances the experts (arXiv 2101.03961, section 2.2)."""

_grouped_mm = getattr(F, "grouped_mm", None)  # from torch 2.10 on
_ALIGNED_BYTES = 16  # that it requires of rows


class _WithLoss(torch.autograd.Function):
    """Forward x; backward `loss` gets the gradient `scale`, as if it had been added to the model's loss."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        ctx.like = loss.detach()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradients[0], torch.full_like(ctx.like, ctx.scale), None


def route(
    logits: Tensor, experts_per_token: int, router: Router, *, loss_scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Weights and indices [tokens, experts_per_token] of the top experts of logits [tokens, experts].

    Scores are in fp32; a token's weights add up to 1. Backward adds the load-balancing loss E · Σ f · P to the model's,
    times `loss_scale`; f are the experts' shares of the tokens, P their mean scores.
    """
    experts = logits.shape[-1]
    wide = logits.float()
    scores = torch.softmax(wide, dim=-1) if router == "softmax" else torch.sigmoid(wide)
    best, chosen = torch.topk(scores, experts_per_token, dim=-1)
    weights = best / best.sum(dim=-1, keepdim=True)
    shares = torch.bincount(chosen.flatten(), minlength=experts).float() / chosen.numel()
    balance = experts * (shares * scores.mean(dim=0)).sum() * BALANCING
    return _WithLoss.apply(weights, balance, loss_scale), chosen  # type: ignore[no-untyped-call]


def by_expert(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """The (token, expert) pairs in the order of the experts, and the number of pairs of every expert.

    `chosen` is [tokens, experts per token]; pair p belongs to token p // experts per token.
    """
    flat = chosen.flatten()
    return torch.argsort(flat, stable=True), torch.bincount(flat, minlength=experts)


def permute(x: Tensor, rows: Tensor) -> Tensor:
    """Rows [n] of x [tokens, d] copied → [n, d]; backward sums the copies' gradients."""
    return x.index_select(0, rows)


class _Reorder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.inverse = inverse
        return x.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0].index_select(0, ctx.inverse), None, None


def reorder(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """All rows of x [n, d] in another order [n]; backward reorders by `inverse`."""
    return _Reorder.apply(x, order, inverse)  # type: ignore[no-untyped-call,no-any-return]


def unpermute(x: Tensor, pairs: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of each token's k rows of x [tokens · k, d], ordered by `pairs` → [tokens, d].

    `weights` are [tokens, k].
    """
    weighted = x * weights.flatten().index_select(0, pairs).to(x.dtype)[:, None]
    out = torch.zeros(weights.shape[0], x.shape[1], dtype=x.dtype, device=x.device)
    return out.index_add(0, pairs // weights.shape[1], weighted)


def grouped_linear(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """A product per group: x [rows, k] is sorted by group with `counts` [groups] rows each → [rows, n].

    `weight` is [groups, n, k]. One call where torch supports device, type and size, else a product per group.
    """
    is_aligned = all(size * x.element_size() % _ALIGNED_BYTES == 0 for size in weight.shape[1:])
    if _grouped_mm is not None and is_aligned and (x.device.type != "cuda" or x.dtype == torch.bfloat16):
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        out: Tensor = _grouped_mm(x, weight.transpose(1, 2), offs=ends)
        return out
    parts = zip(torch.split_with_sizes(x, counts.tolist()), weight.unbind(0), strict=True)
    return torch.cat([F.linear(rows, own) for rows, own in parts])
