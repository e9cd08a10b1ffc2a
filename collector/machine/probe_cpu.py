"""CPU, memory and control groups as Linux reports them; on other systems Python's platform module."""

import os
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_MEMORY = Path("/proc/meminfo")
_CGROUP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
_SLURM_CPUS = re.compile(r"(?:^|,)([0-9]+)(?:\(x[0-9]+\))?(?=,|$)")

# Instruction sets that select kernels in torch's BLAS and oneDNN.
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
    """The vendor's model name, with family, model and stepping: names of virtual machines alone are ambiguous."""
    name = _cpuinfo("model name", "Model", "CPU part") or platform.processor() or platform.machine()
    numbers = [_cpuinfo(key) for key in ("cpu family", "model", "stepping")]
    return (
        f"{name} (family {numbers[0]}, model {numbers[1]}, stepping {numbers[2]})" if all(numbers) else name
    )


def available_cores() -> int:
    """Cores that this process may use: its affinity, limited by its control group's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, int(_quota_cores())))


def job_cores(environment: Mapping[str, str] = os.environ) -> int:
    """Cores that all processes of this job may use on this node, whatever this process is bound to."""
    cores = available_cores()
    if environment.get("SLURM_JOB_ID"):
        cores = max(cores, _slurm_cores(environment))
    elif environment.get("OMPI_COMM_WORLD_SIZE") and hasattr(os, "sched_getaffinity"):
        # Open MPI binds the processes that it starts, but not its own daemon.
        cores = max(cores, len(os.sched_getaffinity(os.getppid())))
    return max(1, min(cores, os.cpu_count() or 1, int(_quota_cores())))


def _slurm_cores(environment: Mapping[str, str]) -> int:
    """CPUs of the job per node, from `SLURM_JOB_CPUS_PER_NODE` such as 72 or 72(x2); 0 where unknown."""
    per_node = {int(cores) for cores in _SLURM_CPUS.findall(environment.get("SLURM_JOB_CPUS_PER_NODE", ""))}
    if len(per_node) == 1:
        return per_node.pop()
    # With several numbers it is unknown which one is this node's.
    own = environment.get("SLURM_CPUS_ON_NODE", "")
    return int(own) if own.isascii() and own.isdecimal() else 0


def available_memory_bytes() -> int:
    """Free memory of this node, within the limits of this process's control groups.

    Slurm and containers set such limits; a process that exceeds them is killed without a message. OSError if not known.
    """
    for line in _MEMORY.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return min([int(line.split()[1]) * 1024, *_left_in_groups_bytes()])
    raise OSError(f"{_MEMORY} names no MemAvailable")


def _left_in_groups_bytes() -> Iterator[int]:
    """Limit minus use of this process's control group and its ancestors, where limited (cgroup v1 or v2)."""
    for folder, version_1 in _control_groups("memory"):
        names = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes")
            if version_1
            else ("memory.max", "memory.current")
        )
        limit, used = (read_text(folder / name) for name in names)
        if limit.isdigit() and used.isdigit():
            # Page cache counts as used, but is reclaimed under pressure.
            yield max(0, int(limit) - int(used) + _file_pages_bytes(folder))


def _file_pages_bytes(folder: Path) -> int:
    cells = dict(
        line.split() for line in read_text(folder / "memory.stat").splitlines() if line.count(" ") == 1
    )
    return int(cells.get("inactive_file", cells.get("total_inactive_file", "0")))


def _control_groups(controller: str) -> Iterator[tuple[Path, bool]]:
    """Folders of this process's control group and its ancestors, and whether they belong to cgroup v1."""
    for line in read_text(_CGROUP).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        top = _CGROUPS / controllers if controllers else _CGROUPS
        group = top / path.lstrip("/")
        # In a container the path may be the host's, and only its top is visible.
        for folder in (group, *group.parents):
            if not folder.is_relative_to(top):
                break
            yield folder, bool(controllers)


def _quota_cores() -> float:
    """The smallest CPU quota of this process's control group and its ancestors (cgroup v1 or v2), in cores."""
    smallest = float(os.cpu_count() or 1)
    for folder, version_1 in _control_groups("cpu"):
        quota, period = _quota(folder, version_1=version_1)
        if quota > 0 and period > 0:
            smallest = min(smallest, quota / period)
    return smallest


def _quota(folder: Path, *, version_1: bool) -> tuple[float, float]:
    """CPU time in µs per period in µs; (-1, -1) without a quota."""
    if version_1:
        text = f"{read_text(folder / 'cpu.cfs_quota_us')} {read_text(folder / 'cpu.cfs_period_us')}"
    else:
        text = read_text(folder / "cpu.max")
    cells = text.split()
    return (float(cells[0]), float(cells[1])) if len(cells) == 2 and cells[0].isdigit() else (-1.0, -1.0)


def read_text(path: Path) -> str:
    """The stripped text of a system file; empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def cpu_instruction_sets() -> tuple[str, ...]:
    """Vector instruction sets, sorted."""
    return tuple(sorted(_INSTRUCTION_SETS.intersection(_cpuinfo("flags", "Features").split())))


def cpu_caches() -> tuple[str, ...]:
    """`L1 Data 48K`-style lines of one core's caches."""
    found = []
    for index in sorted(_CACHES.glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:  # some Arm firmware does not report cache sizes
            continue
        found.append(f"L{level} {kind} {size}")
    return tuple(found)


def last_level_cache_bytes() -> int:
    """Size of the largest cache of a core, 0 where unknown."""
    units = {"K": 1 << 10, "M": 1 << 20}
    sizes = [line.split()[-1] for line in cpu_caches()]
    return max(
        (int(size[:-1]) * units[size[-1]] for size in sizes if size[-1] in units and size[:-1].isdigit()),
        default=0,
    )


def memory_gib() -> int:
    """Physical memory, rounded to GiB, because the kernel's own share varies from boot to boot."""
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


def is_virtualised() -> bool:
    """Whether a hypervisor runs this machine."""
    return "hypervisor" in _cpuinfo("flags", "Features").split()
