"""Ops of routed experts that train: routed without dropping a token, sent to the devices that hold the experts."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from kernelcast.collector.functions import experts as functions
from kernelcast.collector.training.exchanges import exchange
from kernelcast.collector.training.groups import Shard
from kernelcast.collector.training.marks import operator_mark
from kernelcast.runtime.step.op import Op
from kernelcast.runtime.step.sizes import Sizes


class Layer(Protocol):
    """What routed experts read of the layer that they are in."""

    sizes: Sizes
    shard: Shard
    weights: nn.ParameterDict
    loss_scale: float


class Routed(NamedTuple):
    """How the rows of a micro-batch with hidden states of `shape` [b, l, d] are sorted by expert and exchanged.

    `weights` and `pairs` are what `unpermute` takes, `counts` the rows of every expert, `from_each` the rows received
    [devices, experts]; `back` returns results to where the rows came from, the last function first.
    """

    shape: torch.Size
    weights: Tensor
    pairs: Tensor
    counts: Tensor
    from_each: Tensor | None = None
    back: tuple[Callable[[Tensor], Tensor], ...] = ()


Rows = tuple[Tensor, Routed]


def router(layer: Layer, op: Op, x: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of all experts; x [b, l, d] stays."""
    return x, F.linear(x.flatten(0, 1), layer.weights[op.name])


def routing(layer: Layer, op: Op, scored: tuple[Tensor, Tensor]) -> Rows:
    """The experts of every token, and the order of the experts."""
    (x, scores), model = scored, layer.sizes.model
    weights, chosen = functions.route(
        scores, model.experts_per_token, model.router, loss_scale=layer.loss_scale
    )
    return x, Routed(x.shape, weights, *functions.by_expert(chosen, model.experts))


def latent_down(layer: Layer, op: Op, given: Rows) -> Rows:
    """Tokens [b, l, r] in the size that experts read."""
    x, routed = given
    return F.linear(x, layer.weights[op.name]), routed


def permuted(layer: Layer, op: Op, given: Rows) -> Rows:
    """A row [d] for every token and expert, in the order of the experts."""
    x, routed = given
    return functions.permute(x.flatten(0, 1), routed.pairs // layer.sizes.model.experts_per_token), routed


def dispatch(layer: Layer, op: Op, given: Rows) -> Rows:
    """Rows to the devices of their experts."""
    (rows, routed), part = given, layer.shard.experts
    received = torch.empty_like(routed.counts)
    with operator_mark("all_to_all", "expert_counts"):
        dist.all_to_all_single(received, routed.counts, group=part.group)
    sent, came = (counts.view(part.parts, -1).sum(1).tolist() for counts in (routed.counts, received))
    from_each = received.view(part.parts, -1)
    back = (lambda results: exchange(results, came, sent, part.group, "expert"),)
    routed = routed._replace(counts=from_each.sum(0), from_each=from_each, back=back)
    return exchange(rows, sent, came, part.group, "expert"), routed


def sort(layer: Layer, op: Op, given: Rows) -> Rows:
    """Received rows from the order of the senders to that of this device's experts."""
    rows, routed = given
    assert routed.from_each is not None
    parts, local = routed.from_each.shape
    experts = torch.arange(local, device=rows.device).repeat(parts)
    order = torch.argsort(experts.repeat_interleave(routed.from_each.flatten()), stable=True)
    inverse = torch.argsort(order)
    back = (*routed.back, lambda results: functions.reorder(results, inverse, order))
    return functions.reorder(rows, order, inverse), routed._replace(back=back)


def product(layer: Layer, op: Op, given: Rows) -> Rows:
    """A product per expert."""
    rows, routed = given
    return functions.grouped_linear(rows, layer.weights[op.name], routed.counts), routed


def returned(layer: Layer, op: Op, given: Rows) -> Rows:
    """Results back to the order of the senders, or to the devices of their tokens."""
    rows, routed = given
    *before, back = routed.back
    return back(rows), routed._replace(back=tuple(before))


def unpermuted(layer: Layer, op: Op, given: Rows) -> Tensor:
    """The weighted sum of every token's results [b, l, d], or [b, l, r] of latent ones."""
    rows, routed = given
    return functions.unpermute(rows, routed.pairs, routed.weights).view(*routed.shape[:2], -1)
