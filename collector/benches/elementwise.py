"""Activations and residual additions."""

import torch.nn.functional as F

from kernelcast.collector.benches.bench import Bench, Place
from kernelcast.collector.functions.transformer import swiglu as swiglu_of
from kernelcast.runtime.operators import Shape


def gelu(s: Shape, place: Place) -> Bench:
    """GeLU of the MLP's width."""
    x = place.activation(s.micro_batch, s.sequence_length, s.local_mlp_size)
    return Bench(lambda: F.gelu(x), [x])


def swiglu(s: Shape, place: Place) -> Bench:
    """SwiGLU of the joint gate and up projection."""
    both = place.activation(s.micro_batch, s.sequence_length, 2 * s.local_mlp_size)
    return Bench(lambda: swiglu_of(both), [both])


def residual_add(s: Shape, place: Place) -> Bench:
    """The stream goes on into the next branch too: backward adds two gradients into it, as in a real block."""
    x = place.activation(s.micro_batch, s.sequence_length, s.hidden_size)
    branch = place.activation(s.micro_batch, s.sequence_length, s.hidden_size)
    return Bench(lambda: (x + branch, x.view_as(x)), [x, branch])
