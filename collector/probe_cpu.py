"""What Linux says about the CPU (on other systems: what Python's platform module knows)."""

import os
import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")

# Those that select kernels in torch's BLAS and oneDNN.
_INSTRUCTION_SETS = frozenset(
    {
        "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16",
        "avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16",
        "asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2",
    }
)  # fmt: skip


def _cpuinfo(*keys: str) -> str:
    """First value of any of the keys in /proc/cpuinfo, or empty."""
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in keys:
                return value.strip()
    return ""


def cpu_model() -> str:
    """Vendor's name of the model, with family, model and stepping where names alone are vague (virtual machines)."""
    name = _cpuinfo("model name", "Model", "CPU part") or platform.processor() or platform.machine()
    numbers = [_cpuinfo(key) for key in ("cpu family", "model", "stepping")]
    return (
        f"{name} (family {numbers[0]}, model {numbers[1]}, stepping {numbers[2]})" if all(numbers) else name
    )


def cpu_instruction_sets() -> tuple[str, ...]:
    """Vector instruction sets, sorted."""
    return tuple(sorted(_INSTRUCTION_SETS.intersection(_cpuinfo("flags", "Features").split())))


def cpu_caches() -> tuple[str, ...]:
    """`L1 Data 48K`-style lines of one core's caches."""
    found = []
    for index in sorted(_CACHES.glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:  # Some Arm firmware does not say how large a cache is.
            continue
        found.append(f"L{level} {kind} {size}")
    return tuple(found)


def memory_gib() -> int:
    """Physical memory, rounded to GiB: what the kernel keeps for itself varies from boot to boot."""
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


def is_virtualised() -> bool:
    """Whether a hypervisor runs this machine."""
    return "hypervisor" in _cpuinfo("flags", "Features").split()
