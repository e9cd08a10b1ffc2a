"""The present state of an NVIDIA GPU: clocks and what limits them, power, temperature, other processes.

Read through the driver's library (NVML, `nvml.h`) in microseconds; nvidia-smi takes a tenth of a second.
"""

import ctypes
from typing import Self

import torch

# nvmlClocksEventReason*: limits on the clocks other than the set ones.
_POWER_CAP = 0x4
_THROTTLES = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_SUCCESS, _TOO_SMALL = 0, 7
_CLOCK_SM, _TEMPERATURE_GPU = 1, 0  # NVML_CLOCK_SM, NVML_TEMPERATURE_GPU


class Gpu:
    """One GPU."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = library, handle

    @classmethod
    def find(cls, device: torch.device) -> Self | None:
        """The GPU of a torch device, by its UUID; None where the driver's library does not know it."""
        handle = ctypes.c_void_p()
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            if library.nvmlInit_v2() != _SUCCESS:
                return None
            name = gpu_uuid(device).encode()
            if library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)) != _SUCCESS:
                return None
        except (OSError, AttributeError):
            return None
        return cls(library, handle)

    def clock_reasons(self) -> int:
        """Bits of the present limits on the clocks; 0 where unknown."""
        bits = ctypes.c_ulonglong()
        call = self._library.nvmlDeviceGetCurrentClocksThrottleReasons
        return bits.value if call(self._handle, ctypes.byref(bits)) == _SUCCESS else 0

    def clock_mhz(self) -> float | None:
        """Present clock of the multiprocessors, MHz; this and the following are None where unknown."""
        return self._asked("nvmlDeviceGetClockInfo", ctypes.c_uint(), _CLOCK_SM)

    def temperature_c(self) -> float | None:
        """Present temperature of the chip, degrees Celsius."""
        return self._asked("nvmlDeviceGetTemperature", ctypes.c_uint(), _TEMPERATURE_GPU)

    def power_w(self) -> float | None:
        """Power of the board, W: on most GPUs a mean over the last second."""
        return self._asked("nvmlDeviceGetPowerUsage", ctypes.c_uint(), scale=1e-3)

    def energy_j(self) -> float | None:
        """Energy since the driver was loaded, J (Volta and later)."""
        return self._asked("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong(), scale=1e-3)

    def _asked(
        self, name: str, value: ctypes.c_uint | ctypes.c_ulonglong, *arguments: int, scale: float = 1.0
    ) -> float | None:
        """The output argument of a library call, times `scale`."""
        try:
            call = getattr(self._library, name)
        except AttributeError:  # an older driver
            return None
        status = call(self._handle, *(ctypes.c_uint(one) for one in arguments), ctypes.byref(value))
        return value.value * scale if status == _SUCCESS else None

    def processes(self) -> int:
        """Number of processes that compute on it, including this one; 0 where unknown.

        Only the count is used: in a container, process ids differ from the driver's.
        """
        count = ctypes.c_uint(0)
        call = self._library.nvmlDeviceGetComputeRunningProcesses_v3
        status = call(self._handle, ctypes.byref(count), None)
        return count.value if status in (_SUCCESS, _TOO_SMALL) else 0


def gpu_uuid(device: torch.device) -> str:
    """`GPU-…` for nvidia-smi and NVML, which ignore CUDA_VISIBLE_DEVICES in their numbering."""
    return f"GPU-{torch.cuda.get_device_properties(device.index or 0).uuid}"


def throttles(bits: int) -> list[str]:
    """Names of the throttle reasons. A power limit is none: it is part of the hardware's fingerprint."""
    return [words for bit, words in _THROTTLES.items() if bits & bit]


def is_power_capped(bits: int) -> bool:
    """Whether the power limit reduces the clocks, as under long full load."""
    return bool(bits & _POWER_CAP)
