"""A short reference product, timed before and after every sample to detect disturbance."""

import time

import torch

from kernelcast.collector.measuring.harness import synchronise

_SIZE = {"cpu": 256, "cuda": 4096}
_CALLS = 7


class Reference:
    """Times one fixed square matrix product on a device with a wall clock; it is only compared with itself."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        size = _SIZE[device.type]
        self._device = device
        self._left = torch.randn(size, size, device=device, dtype=dtype)
        self._right = torch.randn(size, size, device=device, dtype=dtype)
        self.best_us = float("inf")

    def saturate(self) -> None:
        """Ten products large enough for the whole device: clocks, allocator and libraries warm up."""
        size = 4 * self._left.shape[0]
        large = torch.randn(size, size, device=self._device, dtype=self._left.dtype)
        for _ in range(10):
            torch.mm(large, large)
        synchronise(self._device)

    def time_us(self) -> float:
        """The median of a few products, µs; updates the best time."""
        times = []
        for _ in range(_CALLS):
            start = time.perf_counter()
            torch.mm(self._left, self._right)
            synchronise(self._device)
            times.append((time.perf_counter() - start) * 1e6)
        median = sorted(times)[_CALLS // 2]
        self.best_us = min(self.best_us, median)
        return median
