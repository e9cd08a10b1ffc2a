"""Gradients clipped to a global L2 norm, as Megatron-LM's `--clip-grad` and `torch.nn.utils.clip_grad_norm_` do."""

import torch
from torch import Tensor

MOST_NORM = 1.0
"""The norm that frameworks clip to unless told otherwise."""

_EPSILON = 1e-6  # as torch has it


def squared_norm(gradients: Tensor) -> Tensor:
    """Sum of squares of a buffer, a float32 scalar [] on its device."""
    norm: Tensor = torch.linalg.vector_norm(gradients, dtype=torch.float32)
    return norm.square()


def clip_to_norm(gradients: Tensor, squared: Tensor, *, most_norm: float = MOST_NORM) -> None:
    """Scale a buffer in place so that a norm whose square is `squared` is at most `most_norm`.

    It is multiplied whatever the norm: a condition would make the host wait for the GPU.
    """
    gradients.mul_((most_norm / (squared.sqrt() + _EPSILON)).clamp(max=1.0).to(gradients.dtype))
