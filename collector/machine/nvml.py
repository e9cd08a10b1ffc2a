"""What the NVIDIA driver says of a GPU at this moment: why its clocks are held back, and how many processes compute.

Through the driver's own library (NVML, `nvml.h`), which answers in microseconds; nvidia-smi takes a tenth of a second.
"""

import ctypes
from typing import Self

import torch

# nvmlClocksEventReason*: what holds clocks back, other than what is set and asked for.
_POWER_CAP = 0x4
_THROTTLES = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_SUCCESS, _TOO_SMALL = 0, 7


class Gpu:
    """One GPU, by torch's number of it."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = library, handle

    @classmethod
    def find(cls, device: torch.device) -> Self | None:
        """The GPU that torch calls `device`, by its UUID; None where the driver's library does not know it."""
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
        """Bits of what holds the clocks back now; 0 where the driver does not say."""
        bits = ctypes.c_ulonglong()
        call = self._library.nvmlDeviceGetCurrentClocksThrottleReasons
        return bits.value if call(self._handle, ctypes.byref(bits)) == _SUCCESS else 0

    def processes(self) -> int:
        """How many processes compute on it, this one included; 0 where the driver does not say.

        They are only counted: in a container process ids differ from the driver's.
        """
        count = ctypes.c_uint(0)
        call = self._library.nvmlDeviceGetComputeRunningProcesses_v3
        status = call(self._handle, ctypes.byref(count), None)
        return count.value if status in (_SUCCESS, _TOO_SMALL) else 0


def gpu_uuid(device: torch.device) -> str:
    """`GPU-…` as nvidia-smi and NVML take it: neither counts devices as CUDA_VISIBLE_DEVICES does."""
    return f"GPU-{torch.cuda.get_device_properties(device.index or 0).uuid}"


def throttles(bits: int) -> list[str]:
    """In words what forces clocks down; a power limit is none, it is part of the hardware's fingerprint."""
    return [words for bit, words in _THROTTLES.items() if bits & bit]


def is_power_capped(bits: int) -> bool:
    """Whether the power limit holds the clocks back, as it does under long full load."""
    return bool(bits & _POWER_CAP)
