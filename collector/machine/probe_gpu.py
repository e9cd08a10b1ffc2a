"""Properties of an NVIDIA GPU: from torch, and from nvidia-smi for clocks, limits and links."""

import re
import shutil
import subprocess
from collections import Counter
from typing import Any

import torch

from kernelcast.collector.machine.nvml import gpu_uuid
from kernelcast.runtime.errors import DataError

_QUERY_TIMEOUT_S = 30


def _nvidia_smi(*arguments: str) -> str:
    """Output of nvidia-smi, or empty where it is missing or fails (ROCm, containers without it).

    Raises:
        DataError: it hangs; without its output the same GPU would get another fingerprint.
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
