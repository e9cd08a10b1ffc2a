"""An NVIDIA GPU: its properties, and its present state.

Properties come from torch, and from nvidia-smi for clocks, limits and links. The state (clocks and what limits them,
power, temperature, other processes) is read through the driver's library (NVML, `nvml.h`) in microseconds; nvidia-smi
takes a tenth of a second.
"""

import ctypes
import re
import shutil
import subprocess
from collections import Counter
from typing import Any, Self

import torch

from kernelcast.runtime.errors import DataError

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
        return self._call_library("nvmlDeviceGetClockInfo", ctypes.c_uint(), _CLOCK_SM)

    def temperature_c(self) -> float | None:
        """Present temperature of the chip, degrees Celsius."""
        return self._call_library("nvmlDeviceGetTemperature", ctypes.c_uint(), _TEMPERATURE_GPU)

    def power_w(self) -> float | None:
        """Power of the board, W: on most GPUs a mean over the last second."""
        return self._call_library("nvmlDeviceGetPowerUsage", ctypes.c_uint(), scale=1e-3)

    def energy_j(self) -> float | None:
        """Energy since the driver was loaded, J (Volta and later)."""
        return self._call_library("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong(), scale=1e-3)

    def _call_library(
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
        """Number of processes that compute on it, including this one; 0 where unknown."""
        count = ctypes.c_uint(0)
        call = self._library.nvmlDeviceGetComputeRunningProcesses_v3
        status = call(self._handle, ctypes.byref(count), None)
        return count.value if status in (_SUCCESS, _TOO_SMALL) else 0


def gpu_uuid(device: torch.device) -> str:
    """`GPU-…` for nvidia-smi and NVML, which ignore CUDA_VISIBLE_DEVICES in their numbering."""
    return f"GPU-{torch.cuda.get_device_properties(device.index or 0).uuid}"


def throttles(bits: int) -> list[str]:
    """Names of the throttle reasons. A power limit does not count: it is part of the hardware's fingerprint."""
    return [words for bit, words in _THROTTLES.items() if bits & bit]


def is_power_capped(bits: int) -> bool:
    """Whether the power limit reduces the clocks, as under long full load."""
    return bool(bits & _POWER_CAP)


_QUERY_TIMEOUT_S = 30


def _nvidia_smi(*arguments: str) -> str:
    """Output of nvidia-smi, or empty where it is missing or fails (ROCm, containers without it).

    DataError where it hangs: without its output the same GPU would get another fingerprint.
    """
    if shutil.which("nvidia-smi") is None:
        return ""
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"nvidia-smi {' '.join(arguments)}: no answer within {_QUERY_TIMEOUT_S} s") from None
    return done.stdout if done.returncode == 0 else ""


def _query(device: torch.device, *names: str) -> list[str]:
    out = _nvidia_smi(
        f"--id={gpu_uuid(device)}", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"
    )
    values = [value.strip() for value in out.strip().split(",")]
    return values if len(values) == len(names) else [""] * len(names)


def _number(text: str) -> int:
    """Whole number of a field such as `700.00`; 0 for `[N/A]` and the like."""
    return round(float(text)) if re.fullmatch(r"\d+(\.\d+)?", text) else 0


def _state(text: str) -> str:
    return text.lower() if text in ("Enabled", "Disabled") else ""


def gpu_fields(device: torch.device) -> dict[str, Any]:
    """Fields of a ComputeFingerprint for a GPU."""
    properties = torch.cuda.get_device_properties(device.index or 0)
    clocks = _query(
        device, "clocks.max.sm", "clocks.max.memory", "power.limit", "ecc.mode.current", "mig.mode.current"
    )
    return {
        "kind": "rocm" if torch.version.hip else "cuda",
        "device_name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_gib": round(properties.total_memory / 2**30),
        "max_sm_clock_mhz": _number(clocks[0]),
        "max_memory_clock_mhz": _number(clocks[1]),
        "power_limit_w": _number(clocks[2]),
        "ecc": _state(clocks[3]),
        "mig": _state(clocks[4]),
    }


def driver_version() -> str:
    """Version of the NVIDIA driver, or empty."""
    out = _nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")
    first = next(iter(out.splitlines()), "").strip()
    return first if re.fullmatch(r"[\w.]+", first) else ""


def gpu_links() -> tuple[str, ...]:
    """Links between the node's GPUs and to network adapters, as counts by type: `NV18 ×28`, `PIX ×4`."""
    counts: Counter[str] = Counter()
    for line in _nvidia_smi("topo", "-m").splitlines():
        cells = line.split()
        if cells and re.fullmatch(r"GPU\d+", cells[0]):
            row = int(cells[0][3:])
            # Cells of the upper triangle only: the matrix is symmetric.
            counts.update(c for c in cells[1 + row + 1 :] if re.fullmatch(r"NV\d+|PIX|PXB|PHB|NODE|SYS", c))
    return tuple(f"{link} ×{count}" for link, count in sorted(counts.items()))
