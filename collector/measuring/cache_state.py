"""Caches as a training step leaves them: weights and kept activations gone, what the operator before wrote still there.

Repeated alone, an operator finds its inputs, weights and gradients in the cache if they fit into it; in a step a whole
model's worth of others ran since. A CPU's caches hold torch's own code as well: its dispatcher and autograd run all the
time in a step, so they are called again after the data was evicted. Without that, small operators take too long
(`make bench-caches`). The setting is part of the software fingerprint (`SETTING`): what was measured with other caches
is not mixed with it, nor taken for already there.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelcast.collector.machine.probe_cpu import last_level_cache_bytes

SETTING = "caches=as in a step, up to 96 MiB, code kept"
"""How the software fingerprint names it."""

_SHARE = 1.5
"""Of the cache is streamed through it."""
_MOST_CPU_BYTES = 64 << 20
"""Larger last-level caches are shared by many cores, and a step that trains on a CPU streams some 100 MB between two
uses of a weight: such a cache keeps them. With all 480 MiB of one streamed a measurement took four times as long."""
_CPU_CACHE_BYTES = 32 << 20
"""Where the system does not say."""
_SMALL = 16
"""Rows and columns of what brings torch's code back into a CPU's caches."""


class CacheState:
    """Puts the caches of a device into that state before a measured pass."""

    def __init__(self, device: torch.device) -> None:
        if device.type == "cuda":
            cache_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        else:
            cache_bytes = min(last_level_cache_bytes() or _CPU_CACHE_BYTES, _MOST_CPU_BYTES)
        size = int(cache_bytes * _SHARE)
        self._stream = torch.ones(size // 4, device=device)
        self._small = torch.ones(_SMALL, _SMALL, requires_grad=True) if device.type == "cpu" else None

    def as_in_a_step(self, just_written: Sequence[Tensor]) -> None:
        """Evict what was used before, then write the given tensors, without a change, as whoever produced them did."""
        self._stream.sum()
        if self._small is not None:
            _run_small_operators(self._small)
        for tensor in just_written:
            if tensor.is_floating_point():
                tensor.detach().mul_(1)


def _run_small_operators(weight: Tensor) -> None:
    """A product, a norm, an activation and an addition with their gradients: some 20 kernels of a few µs."""
    scores = F.linear(weight, weight) + weight[0]
    hidden = F.gelu(F.layer_norm(scores, (_SMALL,), weight[0], weight[1])) + scores
    torch.autograd.grad(hidden, weight, torch.ones_like(hidden))
