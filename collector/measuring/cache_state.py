"""Cache state of a training step: weights and saved activations evicted, outputs of the previous operator cached.

Repeated alone, an operator finds its inputs, weights and gradients in the cache if they fit; in a step the rest of the
model ran in between. A CPU's caches also hold torch's code: dispatcher and autograd run all the time in a step, so they
are called again after the eviction. Without that, small operators take too long (`make bench-caches`). The setting is
part of the software fingerprint (`SETTING`), so samples with another cache state are not mixed with it.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelcast.collector.machine.probe_cpu import last_level_cache_bytes

SETTING = "caches=as in a step, up to 96 MiB, code kept"
"""Its name in the software fingerprint."""

_SHARE = 1.5
"""Bytes streamed through the cache, as a multiple of its size."""
_MOST_CPU_BYTES = 64 << 20
"""Larger last-level caches are shared by many cores. A step on a CPU streams about 100 MB between two uses of a weight,
which such a cache keeps. Streaming all 480 MiB of one made a measurement four times as long."""
_CPU_CACHE_BYTES = 32 << 20
"""Cache size where the system does not report it."""
_SMALL = 16
"""Rows and columns of the operators that bring torch's code back into a CPU's caches."""


class CacheState:
    """Sets the cache state of a device before a measured pass."""

    def __init__(self, device: torch.device) -> None:
        if device.type == "cuda":
            cache_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        else:
            cache_bytes = min(last_level_cache_bytes() or _CPU_CACHE_BYTES, _MOST_CPU_BYTES)
        size = int(cache_bytes * _SHARE)
        self._stream = torch.ones(size // 4, device=device)
        self._small = torch.ones(_SMALL, _SMALL, requires_grad=True) if device.type == "cpu" else None

    def as_in_a_step(self, just_written: Sequence[Tensor]) -> None:
        """Evict the cache, then rewrite the given tensors unchanged, as the previous operator would."""
        self._stream.sum()
        if self._small is not None:
            _run_small_operators(self._small)
        for tensor in just_written:
            if tensor.is_floating_point():
                tensor.detach().mul_(1)


def _run_small_operators(weight: Tensor) -> None:
    """A product, a norm, an activation and an addition with their gradients: about 20 kernels of a few µs."""
    scores = F.linear(weight, weight) + weight[0]
    hidden = F.gelu(F.layer_norm(scores, (_SMALL,), weight[0], weight[1])) + scores
    torch.autograd.grad(hidden, weight, torch.ones_like(hidden))
