"""Disturbances from outside, noticed at the start and end of a measurement and stored as flags of its samples."""

import time
from dataclasses import dataclass
from multiprocessing import cpu_count
from pathlib import Path
from typing import Self

import torch

from kernelcast.collector.benches import Place
from kernelcast.collector.machine.probe_gpu import Gpu, is_power_capped, throttles
from kernelcast.collector.measuring.harness import synchronise
from kernelcast.collector.measuring.outcome import Flag, Flags

_SIZE = {"cpu": 256, "cuda": 4096}
_LARGER = 4
"""Rows of the products that saturate a device, as a multiple of the reference's."""
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
        size = _LARGER * self._left.shape[0]
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


_STAT = Path("/proc/stat")
_STEAL_COLUMN = 8
_TICKS_PER_SECOND = 100
# A share of all cores' time, and seconds: the kernel counts in ticks of 10 ms.
_MOST_STOLEN, _FEWEST_STOLEN_SECONDS = 0.03, 0.05
# Times the reference's best in this collection; shared machines vary by a fifth without an effect on quiet times.
_MOST_SLOWED = 1.25


WORTH_AGAIN = frozenset({Flag.UNSTABLE, Flag.DISTURBED, Flag.THROTTLED, Flag.SHARED_DEVICE})
"""Flags that measuring again could clear; a power limit stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """The state of the machine at one moment."""

    seconds: float
    stolen_seconds: float  # of all cores together, since the machine started
    reference_us: float
    clock_reasons: int
    processes: int


class Watch:
    """Looks at the machine at the start and the end of a measurement."""

    def __init__(self, place: Place, reference: Reference | None = None) -> None:
        if reference is None:
            reference = Reference(place.device, place.dtype)
            reference.saturate()
        self._reference = reference
        self._gpu = Gpu.find(place.device) if place.device.type == "cuda" else None
        # All of the machine, also those that this process may not use: steal time is their sum.
        self._cores = cpu_count()

    def with_best(self) -> Self:
        """Itself, after the reference product was timed a few times: the first samples need a best time."""
        for _ in range(5):
            self._reference.time_us()
        return self

    def look(self) -> _Moment:
        """The machine now; takes a few reference products."""
        return _Moment(
            seconds=time.monotonic(),
            stolen_seconds=_stolen_seconds(),
            reference_us=self._reference.time_us(),
            clock_reasons=self._gpu.clock_reasons() if self._gpu else 0,
            processes=self._gpu.processes() if self._gpu else 0,
        )

    def flags(self, before: _Moment, after: _Moment) -> Flags:
        """Flags of a measurement between two moments."""
        found: list[tuple[str, str]] = []
        if disturbances := self._disturbances(before, after):
            found.append((Flag.DISTURBED, "; ".join(disturbances)))
        reasons = before.clock_reasons | after.clock_reasons
        if held_back := throttles(reasons):
            found.append((Flag.THROTTLED, ", ".join(held_back)))
        if is_power_capped(reasons):
            found.append((Flag.POWER_CAPPED, "the power limit holds the clocks back"))
        if (others := max(before.processes, after.processes) - 1) > 0:
            found.append((Flag.SHARED_DEVICE, f"{others} other process(es) on the GPU"))
        return tuple(found)

    def _disturbances(self, before: _Moment, after: _Moment) -> list[str]:
        found = []
        slowed = mean_reference_us(before, after) / self._reference.best_us
        if slowed > _MOST_SLOWED:
            found.append(f"the reference product took {slowed:.2f} times its best")
        stolen = after.stolen_seconds - before.stolen_seconds
        share = stolen / max(1e-9, self._cores * (after.seconds - before.seconds))
        if stolen >= _FEWEST_STOLEN_SECONDS and share > _MOST_STOLEN:
            found.append(f"other machines on this host took {share:.0%} of the cores")
        return found


def mean_reference_us(before: _Moment, after: _Moment) -> float:
    """Time of the reference product around a measurement, µs."""
    return (before.reference_us + after.reference_us) / 2


def _stolen_seconds() -> float:
    try:
        return int(_STAT.read_text().splitlines()[0].split()[_STEAL_COLUMN]) / _TICKS_PER_SECOND
    except (OSError, IndexError):  # other systems
        return 0.0
