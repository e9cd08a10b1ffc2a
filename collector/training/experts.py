"""Experts of a layer that train for real: routed without dropping a token, sent to the devices that hold them."""

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from kernelcast.collector.functions.experts import (
    by_expert,
    grouped_linear,
    permute,
    reorder,
    route,
    unpermute,
)
from kernelcast.collector.functions.transformer import swiglu
from kernelcast.collector.training.exchanges import exchange
from kernelcast.collector.training.groups import Part
from kernelcast.collector.training.marks import operator_mark
from kernelcast.runtime.step.layers.mlp import activation_operator
from kernelcast.runtime.step.sizes import Sizes


class Experts(nn.Module):
    """A layer's experts on one device, with the sizes of their ops (runtime/step/layers/experts.py).

    `loss_scale` scales the load-balancing loss, whose gradients are added in the backward pass.
    """

    def __init__(
        self, sizes: Sizes, part: Part, weights: Callable[..., Tensor], *, loss_scale: float
    ) -> None:
        super().__init__()
        model = sizes.model
        d, width, branches = model.hidden_size, model.expert_width, sizes.branches
        self.sizes, self.part, self.loss_scale = sizes, part, loss_scale
        self.up_role = f"experts_{'gate_' if sizes.is_gated else ''}up"
        own = part.of(model.experts)
        self.router = nn.Parameter(weights("router", model.experts, d))
        self.up = nn.Parameter(weights("experts_up", model.experts, branches * width, d)[own].clone())
        self.down = nn.Parameter(weights("experts_down", model.experts, d, width)[own].clone())
        shared = model.shared_expert_size
        self.shared_up = nn.Parameter(weights("shared_up", branches * shared, d)) if shared else None
        self.shared_down = nn.Parameter(weights("shared_down", d, shared)) if shared else None

    @property
    def own(self) -> list[nn.Parameter]:
        """Parameters that only this device of the expert-parallel group has."""
        return [self.up, self.down]

    def forward(self, x: Tensor) -> Tensor:
        """X [b, l, d] → [b, l, d]."""
        tokens, model = x.flatten(0, 1), self.sizes.model
        with operator_mark("gemm", "router"):
            logits = F.linear(tokens, self.router)
        with operator_mark("router"):
            weights, chosen = route(logits, model.experts_per_token, model.router, loss_scale=self.loss_scale)
            pairs, counts = by_expert(chosen, model.experts)
        with operator_mark("permute"):
            rows = permute(tokens, pairs // model.experts_per_token)
        rows = self._computed(rows, counts) if self.part.group is None else self._sent(rows, counts)
        with operator_mark("unpermute"):
            out = unpermute(rows, pairs, weights)
        return self._with_shared(out.view_as(x), x)

    def _sent(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Send rows to the devices of their experts, and get the results back."""
        group, parts = self.part.group, self.part.parts
        assert group is not None
        received = torch.empty_like(counts)
        with operator_mark("all_to_all", "expert_counts"):
            dist.all_to_all_single(received, counts, group=group)
        from_each = received.view(parts, -1)
        sent, came = counts.view(parts, -1).sum(1).tolist(), from_each.sum(1).tolist()
        rows = exchange(rows, sent, came, group, "expert")
        local = from_each.shape[1]
        if local == 1:
            return exchange(self._computed(rows, from_each.sum(0)), came, sent, group, "expert")
        # Received rows are in the order of the senders.
        with operator_mark("copy"):
            experts = torch.arange(local, device=rows.device).repeat(parts)
            order = torch.argsort(experts.repeat_interleave(received), stable=True)
            inverse = torch.argsort(order)
            rows = reorder(rows, order, inverse)
        rows = self._computed(rows, from_each.sum(0))
        with operator_mark("copy"):
            rows = reorder(rows, inverse, order)
        return exchange(rows, came, sent, group, "expert")

    def _computed(self, rows: Tensor, counts: Tensor) -> Tensor:
        with operator_mark("grouped_gemm", self.up_role):
            hidden = grouped_linear(rows, self.up, counts)
        hidden = self._activated(hidden)
        with operator_mark("grouped_gemm", "experts_down"):
            return grouped_linear(hidden, self.down, counts)

    def _activated(self, hidden: Tensor) -> Tensor:
        with operator_mark(activation_operator(self.sizes)):
            return swiglu(hidden) if self.sizes.is_gated else F.gelu(hidden)

    def _with_shared(self, out: Tensor, x: Tensor) -> Tensor:
        if self.shared_up is None or self.shared_down is None:
            return out
        with operator_mark("gemm", "shared_gate_up"):
            hidden = F.linear(x, self.shared_up)
        hidden = self._activated(hidden)
        with operator_mark("gemm", "shared_down"):
            shared = F.linear(hidden, self.shared_down)
        with operator_mark("residual_add"):
            return out + shared
