"""Rates that a device reaches within seconds: matrix products per element type, and memory copies."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

_DTYPES = ("float32", "bfloat16")
_SIDES = (256, 512, 1024, 2048)
"""Of the matrices, in turn: small ones reach less; a CPU without 16-bit units takes minutes for runs of the largest."""
_COPIED_BYTES = 1 << 28
"""Much larger than a cache."""
_BUDGET_S = 0.2
_LONG_S = 0.01
_LEAST_RUNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakRates:
    """The best of several runs: FLOP/s of a matrix product by element type, and bytes/s read and written by a copy."""

    flops_per_s: dict[str, float]
    memory_bytes_per_s: float


def measure_peaks(device: torch.device, *, threads: int) -> PeakRates:
    """Measure with the threads of one process. Other work on the machine lowers the result."""
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(threads)
    try:
        return PeakRates(
            flops_per_s={name: matmul_flops_per_s(getattr(torch, name), device) for name in _DTYPES},
            memory_bytes_per_s=_copy_bytes_per_s(device),
        )
    finally:
        torch.set_num_threads(before)


def matmul_flops_per_s(dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of a square product: the best of sides that grow while one takes less than 10 ms."""
    best = 0.0
    for side in _SIDES:
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        taken_s = _shortest_s(lambda: torch.mm(a, b, out=out), device)  # noqa: B023
        best = max(best, 2 * side**3 / taken_s)
        if taken_s > _LONG_S:
            break
    return best


def _copy_bytes_per_s(device: torch.device) -> float:
    source = torch.zeros(_COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * _COPIED_BYTES / _shortest_s(lambda: target.copy_(source), device)


def _shortest_s(work: Callable[[], object], device: torch.device) -> float:
    """Shortest of several runs after one that warms up: at least three, then for a fifth of a second."""
    times_s: list[float] = []
    begin = None
    while len(times_s) <= _LEAST_RUNS or time.perf_counter() - (begin or 0.0) < _BUDGET_S:
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times_s.append(time.perf_counter() - start)
        begin = begin or time.perf_counter()
    return min(times_s[1:])
