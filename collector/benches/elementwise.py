"""Norms, activations, additions, masks, embedding and loss; the vocabulary is the local shard."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelcast.collector.benches.bench import Bench, Place, Point
from kernelcast.collector.functions.transformer import add_bias, token_loss
from kernelcast.collector.functions.transformer import swiglu as swiglu_of
from kernelcast.collector.functions.vocabulary_parallel import local_rows, mask_rows


def embedding(point: Point, place: Place) -> Bench:
    """Lookup in the local rows; the gradient is dense: zeros, a scatter-add, and an addition to `.grad`."""
    tokens, vocabulary, d = point.vector
    ids, weight = place.indices(vocabulary, 1, tokens), place.parameter(vocabulary, d)
    return Bench(lambda: F.embedding(ids, weight), [], [weight])


def embedding_mask(point: Point, place: Place) -> Bench:
    """The mask of a vocabulary-parallel lookup: tokens of other shards, here half, get rows of zeros."""
    rows, columns = point.vector
    x, ids = place.activation(1, rows, columns), place.indices(2, 1, rows)

    def forward() -> Tensor:
        _, elsewhere = local_rows(ids, 0, 1)
        return mask_rows(x, elsewhere)

    return Bench(forward, [x])


def copy(point: Point, place: Place) -> Bench:
    """Rows copied into another order."""
    x = place.activation(1, *point.vector)
    return Bench(lambda: torch.roll(x, 1, dims=1), [x])


def layer_norm(point: Point, place: Place) -> Bench:
    """Layer normalisation with weight and bias, torch's fused kernel."""
    d = point.vector[-1]
    x, weight, bias = place.activation(*point.vector), place.parameter(d), place.parameter(d)
    return Bench(lambda: F.layer_norm(x, (d,), weight, bias), [x], [weight, bias])


def rms_norm(point: Point, place: Place) -> Bench:
    """Root-mean-square normalisation with weight, torch's fused kernel."""
    d = point.vector[-1]
    x, weight = place.activation(*point.vector), place.parameter(d)
    return Bench(lambda: F.rms_norm(x, (d,), weight), [x], [weight])


def gelu(point: Point, place: Place) -> Bench:
    x = place.activation(*point.vector)
    return Bench(lambda: F.gelu(x), [x])


def swiglu(point: Point, place: Place) -> Bench:
    """SwiGLU of the joint gate and up projection."""
    b, length, width = point.vector
    both = place.activation(b, length, 2 * width)
    return Bench(lambda: swiglu_of(both), [both])


def residual_add(point: Point, place: Place) -> Bench:
    """Addition of a branch; backward adds the gradients of the residual stream and of the next branch."""
    x, branch = place.activation(*point.vector), place.activation(*point.vector)
    return Bench(lambda: (x + branch, x.view_as(x)), [x, branch])


def bias_add(point: Point, place: Place) -> Bench:
    rows, columns = point.vector
    x, bias = place.activation(rows, columns), place.parameter(columns)
    return Bench(lambda: add_bias(x, bias), [x], [bias])


def cross_entropy(point: Point, place: Place) -> Bench:
    """Mean loss over the local columns of the logits; sums over shards are separate collectives."""
    b, length, vocabulary = point.vector
    logits, targets = place.activation(*point.vector), place.indices(vocabulary, b, length)
    return Bench(lambda: token_loss(logits, targets), [logits])


def dropout(point: Point, place: Place) -> Bench:
    """A tenth of the entries dropped; the mask is saved."""
    rows, columns = point.vector
    x = place.activation(rows, columns)
    return Bench(lambda: F.dropout(x, 0.1), [x])
