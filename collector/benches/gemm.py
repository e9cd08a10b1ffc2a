"""Matrix products."""

import torch
import torch.nn.functional as F

from kernelcast.collector.benches.bench import Bench, Place, Point


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
