"""Matrix products, and the operators of a mixture of experts: router, permutation and back, grouped product."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelcast.collector.benches.bench import Bench, Place, Point
from kernelcast.collector.functions import experts


def gemm(point: Point, place: Place) -> Bench:
    """The product of a linear [m, k] × [k, n]; its weight in torch's layout [n, k]."""
    m, k, n = point.vector
    x, weight = place.activation(m, k), place.parameter(n, k)
    return Bench(lambda: F.linear(x, weight), [x], [weight])


def batched_gemm(point: Point, place: Place) -> Bench:
    """A product per head; for attention scores the second operand is the transposed keys."""
    batch, m, k, n = point.vector
    left = place.activation(batch, m, k)
    if point.role == "attention_scores":
        keys = place.activation(batch, n, k)
        return Bench(lambda: torch.bmm(left, keys.transpose(1, 2)), [left, keys])
    right = place.activation(batch, k, n)
    return Bench(lambda: torch.bmm(left, right), [left, right])


_CHOSEN = 2  # experts per token, which the workload vector of a router lacks


def router(point: Point, place: Place) -> Bench:
    """Softmax over the experts, the top two, the load-balancing loss, and the order of the rows."""
    tokens, number = point.vector
    logits = place.activation(tokens, number)

    def forward() -> Tensor:
        weights, chosen = experts.route(logits, min(_CHOSEN, number), "softmax")
        experts.by_expert(chosen, number)
        return weights

    return Bench(forward, [logits])


def permute(point: Point, place: Place) -> Bench:
    """A copy of each token for each of its experts, in random order."""
    tokens, each, d = point.vector
    x, pairs = place.activation(tokens, d), _pairs(point, place)
    return Bench(lambda: experts.permute(x, pairs // each), [x])


def unpermute(point: Point, place: Place) -> Bench:
    """Rows in random order, weighted and summed per token."""
    tokens, each, d = point.vector
    x, pairs = place.activation(tokens * each, d), _pairs(point, place)
    weights = place.activation(tokens, each)
    return Bench(lambda: experts.unpermute(x, pairs, weights), [x, weights])


def _pairs(point: Point, place: Place) -> Tensor:
    tokens, each, _ = point.vector
    return torch.randperm(tokens * each, device=place.device)


def grouped_gemm(point: Point, place: Place) -> Bench:
    """A product per group, with equal numbers of rows; weights in torch's layout [groups, n, k]."""
    groups, m, k, n = point.vector
    x, weight = place.activation(groups * m, k), place.parameter(groups, n, k)
    counts = torch.full((groups,), m, device=place.device)
    return Bench(lambda: experts.grouped_linear(x, weight, counts), [x], [weight])
