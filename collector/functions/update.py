"""The tensor functions of an update: gradients clipped to a global L2 norm, then fused AdamW.

Clipping follows Megatron-LM's `--clip-grad` and `torch.nn.utils.clip_grad_norm_`. In 16 bit the optimizer has fp32
master weights (arXiv 1710.03740, section 3.1).
"""

from collections.abc import Callable, Iterable
from typing import Any

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
    """Scale a buffer in place, without a condition, so that a norm whose square is `squared` is at most `most_norm`."""
    gradients.mul_((most_norm / (squared.sqrt() + _EPSILON)).clamp(max=1.0).to(gradients.dtype))


LEARNING_RATE = 1e-4


def fused_adamw(parameters: list[Tensor], learning_rate: float) -> torch.optim.Optimizer:
    """The optimizer of float32 parameters."""
    return torch.optim.AdamW(parameters, lr=learning_rate, fused=True)


class MasterAdamW:
    """Fused AdamW over parameters that are all float32, or all 16-bit with float32 master weights.

    In 16 bit a step casts the gradients to float32, divides them by the loss scale, updates the master weights, and
    casts them back. `make` creates the optimizer of the master weights, which may shard the work over processes.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        learning_rate: float = LEARNING_RATE,
        loss_scale: float = 1.0,
        make: Callable[[list[Tensor], float], Any] = fused_adamw,
    ) -> None:
        self.parameters = list(parameters)
        self.masters = [
            p if p.dtype == torch.float32 else p.detach().float().requires_grad_() for p in self.parameters
        ]
        self._is_mixed = any(m is not p for m, p in zip(self.masters, self.parameters, strict=True))
        self._loss_scale = loss_scale
        for master in self.masters if self._is_mixed else ():
            master.grad = torch.zeros_like(master)
        self.optimizer = make(self.masters, learning_rate)

    def step(self) -> None:
        """Update all parameters; every one must have a gradient."""
        if not self._is_mixed:
            self.optimizer.step()
            return
        with torch.no_grad():
            gradients = _gradients(self.masters)
            torch._foreach_copy_(gradients, _gradients(self.parameters))
            if self._loss_scale != 1.0:
                torch._foreach_div_(gradients, self._loss_scale)
            self.optimizer.step()
            torch._foreach_copy_(self.parameters, self.masters)


def _gradients(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.grad for tensor in tensors if tensor.grad is not None]
