"""Normalisations, as torch's fused kernels."""

import torch.nn.functional as F

from kernelcast.collector.benches.bench import Bench, Place
from kernelcast.runtime.operators import Shape


def layer_norm(s: Shape, place: Place) -> Bench:
    """Layer normalisation with weight and bias."""
    x = place.activation(s.micro_batch, s.sequence_length, s.hidden_size)
    weight, bias = place.parameter(s.hidden_size), place.parameter(s.hidden_size)
    return Bench(lambda: F.layer_norm(x, (s.hidden_size,), weight, bias), [x], [weight, bias])


def rms_norm(s: Shape, place: Place) -> Bench:
    """Root-mean-square normalisation with weight."""
    x = place.activation(s.micro_batch, s.sequence_length, s.hidden_size)
    weight = place.parameter(s.hidden_size)
    return Bench(lambda: F.rms_norm(x, (s.hidden_size,), weight), [x], [weight])
