"""The machine that a trace was recorded on; fields that the trace lacks stay 0 or empty."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import numpy as np

from kernelcast.collector.traces.arguments import decoded, whole
from kernelcast.collector.traces.events import DEVICE_CATEGORIES, LAUNCH_CATEGORIES
from kernelcast.collector.traces.kineto import Trace
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, SoftwareFingerprint

_UNKNOWN = {
    "cpu": "unknown CPU",
    "cuda": "unknown GPU",
    "rocm": "unknown GPU",
    "accelerator": "unknown accelerator",
}
# Prefixes of the profiler's categories for other devices.
_FOREIGN = ("mtia", "xpu", "hpu", "privateuse1")
# Drivers reserve memory: up to this share of the next multiple of 4 GiB may be missing.
_MEMORY_STEP_GIB, _LARGEST_RESERVED = 4, 0.03
_YEAR_2000_NS = 946_684_800 * 10**9
_YEAR_2200_NS = 7_258_118_400 * 10**9


def compute_of(trace: Trace) -> ComputeFingerprint:
    """The device that the kernels ran on, from the trace's device properties."""
    used = Counter[int | None]()
    kernels = trace.of_category(*DEVICE_CATEGORIES)
    for text, count in enumerate(np.bincount(kernels.arguments).tolist()):
        if count:
            used[whole(decoded(kernels.texts.arguments[text]).device)] += count
    number = used.most_common(1)[0][0] if used else None
    listed = {whole(entry.get("id")): entry for entry in trace.device_properties}
    device = listed.get(number) or next(iter(trace.device_properties), {})
    name = _text(device.get("name"))
    kind = _kind(trace, name, has_kernels=bool(used))
    if kind == "cpu":
        return ComputeFingerprint(kind=kind, device_name=_UNKNOWN[kind])
    major, minor = whole(device.get("computeMajor")), whole(device.get("computeMinor"))
    return ComputeFingerprint(
        kind=kind,
        device_name=name or _UNKNOWN.get(kind, f"unknown {kind.upper()}"),
        compute_capability="" if major is None or minor is None else f"{major}.{minor}",
        multiprocessors=whole(device.get("numSms")) or 0,
        memory_gib=_memory_gib(whole(device.get("totalGlobalMem")) or 0),
    )


def _kind(trace: Trace, name: str, *, has_kernels: bool) -> str:
    """The kind of device: cpu, cuda, rocm, one of `_FOREIGN`, or accelerator where nothing else is certain."""
    categories = {trace.events.texts.kinds[number][0] for number in np.unique(trace.events.kind).tolist()}
    if foreign := [kind for kind in _FOREIGN if any(category.startswith(kind) for category in categories)]:
        return foreign[0]
    launches = trace.of_category(*LAUNCH_CATEGORIES)
    is_hip = any(name.startswith("hip") for name in launches.named())
    if trace.hip_runtime_version or is_hip or name.startswith("AMD "):
        return "rocm"
    backend = trace.distributed.get("backend")
    if len(launches) or trace.device_properties or trace.cuda_runtime_version or backend == "nccl":
        return "cuda"
    is_elsewhere = isinstance(backend, str) and backend not in ("", "gloo", "mpi", "ucc")
    return "accelerator" if has_kernels or is_elsewhere else "cpu"


def _memory_gib(size_bytes: int) -> int:
    """Nominal memory: drivers report sizes that differ by their reserved memory."""
    gib = size_bytes / 2**30
    above = -(-gib // _MEMORY_STEP_GIB) * _MEMORY_STEP_GIB
    return int(above) if gib >= above * (1 - _LARGEST_RESERVED) else round(gib)


def software_of(trace: Trace) -> SoftwareFingerprint:
    """Versions in the trace. It lacks torch's and the driver's version (it has only the driver's CUDA level)."""
    return SoftwareFingerprint(
        torch="",
        cuda=_runtime_version(trace),
        nccl=_text(trace.distributed.get("nccl_version")),
    )


def _runtime_version(trace: Trace) -> str:
    if version := trace.hip_runtime_version:  # 6.4.43483 is 60443483
        return f"HIP {version // 10_000_000}.{version // 100_000 % 100}.{version % 100_000}"
    version = trace.cuda_runtime_version  # 12.4 is 12040
    return f"{version // 1000}.{version % 1000 // 10}" if version else ""


def gpus_per_node_of(trace: Trace) -> int:
    """Devices of a node, 0 where unknown; a job with no more processes than listed devices counts as one node."""
    world_size = whole(trace.distributed.get("world_size"))
    devices = len(trace.device_properties)
    return devices if world_size is not None and 1 < world_size <= devices else 0


def recorded_ns(trace: Trace) -> int | None:
    """Unix time of the first event, ns; None where the trace's clock does not count from Unix time."""
    if not len(trace.events):
        return None
    moment_ns = trace.base_time_ns + round(trace.events.start_us.item(0) * 1000)
    return moment_ns if _YEAR_2000_NS < moment_ns < _YEAR_2200_NS else None


def recorded_at(trace: Trace) -> str | None:
    """Time of the first event, UTC; None where it is not known."""
    moment_ns = recorded_ns(trace)
    return None if moment_ns is None else datetime.fromtimestamp(moment_ns / 1e9, UTC).isoformat()


def process_groups(trace: Trace) -> tuple[dict[str, Any], ...]:
    """Name, size and ranks of the groups that the trace lists."""
    listed = trace.distributed.get("pg_config")
    groups = []
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict):
            fields = {"name": entry.get("pg_name"), "size": entry.get("pg_size"), "ranks": entry.get("ranks")}
            groups.append({name: value for name, value in fields.items() if value is not None})
    return tuple(groups)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
