"""The optimizer that trains: fused AdamW, in 16 bit over float32 master weights (arXiv 1710.03740, section 3.1)."""

from collections.abc import Iterable

import torch
from torch import Tensor

LEARNING_RATE = 1e-4


class MasterAdamW:
    """Fused AdamW over parameters that are all float32, or all 16-bit with float32 copies to which updates are added.

    In 16 bit a step casts the gradients into the copies', updates these, and casts the weights back.
    """

    def __init__(self, parameters: Iterable[Tensor], *, learning_rate: float = LEARNING_RATE) -> None:
        self.parameters = list(parameters)
        self.masters = [
            p if p.dtype == torch.float32 else p.detach().float().requires_grad_() for p in self.parameters
        ]
        self._is_mixed = any(m is not p for m, p in zip(self.masters, self.parameters, strict=True))
        for master in self.masters if self._is_mixed else ():
            master.grad = torch.zeros_like(master)
        self.optimizer = torch.optim.AdamW(self.masters, lr=learning_rate, fused=True)

    def step(self) -> None:
        """Update all parameters; every one must have a gradient."""
        if not self._is_mixed:
            self.optimizer.step()
            return
        with torch.no_grad():
            torch._foreach_copy_(_gradients(self.masters), _gradients(self.parameters))
            self.optimizer.step()
            torch._foreach_copy_(self.parameters, self.masters)


def _gradients(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.grad for tensor in tensors if tensor.grad is not None]
