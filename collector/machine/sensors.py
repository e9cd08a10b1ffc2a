"""Present clock, power and temperature of the measuring device; None where unknown.

For a GPU they come from the driver (probe_gpu.py). For a CPU they come from Linux: cpufreq, or /proc/cpuinfo where the
kernel counts cycles; RAPL's energy counters, which most systems let only root read; thermal zones or hwmon. Most
virtual machines have none of them.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

import torch

from kernelcast.collector.machine.probe_cpu import read_text
from kernelcast.collector.machine.probe_gpu import Gpu

_ROOT = Path("/")
_ZONES = frozenset({"x86_pkg_temp", "cpu-thermal", "cpu_thermal", "cpu0-thermal"})
_CHIPS = frozenset({"coretemp", "k10temp", "zenpower", "cpu_thermal"})
# With this flag the kernel's "cpu MHz" is counted; without it (and without cpufreq) it is the nominal rate.
_COUNTS_CYCLES = "aperfmperf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Values of the sensors; `power_w` is the mean since the previous reading, where energy is counted."""

    clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None

    @classmethod
    def mean(cls, readings: Iterable[Self]) -> Self:
        """The mean of each value over the readings that have it."""
        listed = list(readings)
        return cls(**{f.name: _mean(getattr(one, f.name) for one in listed) for f in fields(cls)})


class Sensors:
    """Sensors of a device; this device has none."""

    def read(self) -> Reading:
        """The present values."""
        return Reading()


class PowerMeter:
    """Mean power between two calls, from an energy counter (joules); None at first, and where the counter is None."""

    def __init__(
        self, energy_j: Callable[[], float | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._energy_j, self._clock = energy_j, clock
        self._last: tuple[float, float] | None = None

    def mean_w(self) -> float | None:
        """Watts since the last call; None where the counter was reset in between."""
        now, energy_j = self._clock(), self._energy_j()
        last, self._last = self._last, None if energy_j is None else (now, energy_j)
        if last is None or energy_j is None or now <= last[0] or energy_j < last[1]:
            return None
        return (energy_j - last[1]) / (now - last[0])


class GpuSensors(Sensors):
    """Sensors of one NVIDIA GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._meter = PowerMeter(gpu.energy_j)

    def read(self) -> Reading:
        """Present clock and temperature; power since the last reading, or the driver's average."""
        mean_w = self._meter.mean_w()
        return Reading(
            clock_mhz=self._gpu.clock_mhz(),
            power_w=mean_w if mean_w is not None else self._gpu.power_w(),
            temperature_c=self._gpu.temperature_c(),
        )


class CpuSensors(Sensors):
    """Sensors of this machine's CPUs, read below `root`; the clock is the mean over `cores` (empty: all allowed)."""

    def __init__(self, cores: Sequence[int] = (), *, root: Path = _ROOT) -> None:
        self._root = root
        has_affinity = hasattr(os, "sched_getaffinity")
        self._cores = tuple(cores) or (tuple(sorted(os.sched_getaffinity(0))) if has_affinity else ())
        self._meter = PowerMeter(self._energy_j)

    def read(self) -> Reading:
        """Present clock and temperature, power since the last reading."""
        return Reading(
            clock_mhz=self._clock_mhz(), power_w=self._meter.mean_w(), temperature_c=self._temperature_c()
        )

    def _clock_mhz(self) -> float | None:
        folder = self._root / "sys/devices/system/cpu"
        frequencies = [_number(folder / f"cpu{core}/cpufreq/scaling_cur_freq") for core in self._cores]
        if any(frequencies):
            return _mean(None if one is None else one / 1e3 for one in frequencies)
        processors = [_cells(block) for block in read_text(self._root / "proc/cpuinfo").split("\n\n")]
        return _mean(
            float(cells["cpu MHz"])
            for cells in processors
            if _COUNTS_CYCLES in cells.get("flags", "").split()
            and cells.get("processor", "") in map(str, self._cores)
            and "cpu MHz" in cells
        )

    def _energy_j(self) -> float | None:
        """Energy of all packages; None where one cannot be read."""
        packages = [
            zone
            for zone in sorted((self._root / "sys/class/powercap").glob("intel-rapl:*"))
            if read_text(zone / "name").startswith("package")
        ]
        energies_uj = [_number(zone / "energy_uj") for zone in packages]
        read = [one for one in energies_uj if one is not None]
        return sum(read) / 1e6 if read and len(read) == len(energies_uj) else None

    def _temperature_c(self) -> float | None:
        """Temperature of the hottest CPU sensor."""
        zones = (self._root / "sys/class/thermal").glob("thermal_zone*")
        found = [_number(zone / "temp") for zone in zones if read_text(zone / "type") in _ZONES]
        if not any(found):
            chips = (self._root / "sys/class/hwmon").glob("hwmon*")
            found = [
                _number(value)
                for chip in chips
                if read_text(chip / "name") in _CHIPS
                for value in chip.glob("temp*_input")
            ]
        return max((one / 1e3 for one in found if one is not None), default=None)


def sensors_of(device: torch.device, cores: Sequence[int] = ()) -> Sensors:
    """The sensors of a device; `cores` are the measuring cores of a CPU."""
    if device.type == "cpu":
        return CpuSensors(cores)
    gpu = Gpu.find(device) if device.type == "cuda" else None
    return Sensors() if gpu is None else GpuSensors(gpu)


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return round(sum(found) / len(found), 1) if found else None


def _cells(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _number(path: Path) -> float | None:
    text = read_text(path)
    return float(text) if text.removeprefix("-").isdecimal() and text.isascii() else None
