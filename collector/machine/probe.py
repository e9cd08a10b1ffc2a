"""This machine's fingerprints: everything that decides its speed. No host name, serial number or user is read."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from kernelcast.collector.functions.transformer import flash_attn_version
from kernelcast.collector.machine.probe_cpu import (
    cpu_caches,
    cpu_instruction_sets,
    cpu_model,
    is_virtualised,
    job_cores,
    memory_gib,
    read_text,
)
from kernelcast.collector.machine.probe_gpu import driver_version, gpu_fields, gpu_links
from kernelcast.collector.measuring import cache_state, core_binding, gloo_threads, host_memory
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.errors import UsageError

# Settings that change the kernels. Threads are in the compute fingerprint; variables with paths or hosts are left out.
_TUNING_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_MAX_CONNECTIONS", "MKL_CBWR", "NCCL_ALGO", "NCCL_BUFFSIZE",
    "NCCL_IB_DISABLE", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_NET_GDR_LEVEL", "NCCL_NTHREADS",
    "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_PROTO", "NCCL_SHM_DISABLE",
    "NVIDIA_TF32_OVERRIDE", "ONEDNN_MAX_CPU_ISA", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)  # fmt: skip

_INFINIBAND = Path("/sys/class/infiniband")
_NETWORK = Path("/sys/class/net")
_CPU_LIBRARY_LINES = ("Intel(R)", "OpenBLAS", "Arm", "OpenMP", "CPU capability")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprints:
    """The three keys of every measurement here."""

    compute: ComputeFingerprint
    fabric: FabricFingerprint
    software: SoftwareFingerprint


def resolve_device(name: str) -> torch.device:
    """The device of a name; `auto` is the GPU where one exists, else the CPU. UsageError for an unknown one."""
    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(f"device {name!r} is unknown; expected auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("device is 'cuda', but torch finds no CUDA device here; expected cpu or auto")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def probe(device: torch.device, *, threads: int, processes: int = 1) -> Fingerprints:
    """Fingerprints of this machine for `device`; on a CPU, for `processes` processes with `threads` threads each."""
    return Fingerprints(
        compute=_compute(device, threads),
        fabric=_fabric(device, threads),
        software=_software(device, threads, processes),
    )


def _compute(device: torch.device, threads: int) -> ComputeFingerprint:
    if device.type == "cuda":
        return ComputeFingerprint(**gpu_fields(device))
    return ComputeFingerprint(
        kind="cpu",
        device_name=cpu_model(),
        memory_gib=memory_gib(),
        cores=job_cores(),
        threads=threads,
        caches=cpu_caches(),
        instruction_sets=cpu_instruction_sets(),
        virtualised=is_virtualised(),
    )


def _fabric(device: torch.device, threads: int) -> FabricFingerprint:
    if device.type == "cuda":
        return FabricFingerprint(
            backend="nccl", gpus_per_node=torch.cuda.device_count(), links=gpu_links(), nics=network_links()
        )
    # On a CPU a "device" is one process with its threads; processes communicate through shared memory.
    return FabricFingerprint(
        backend="gloo",
        gpus_per_node=max(1, job_cores() // threads),
        links=("shared memory",),
        nics=network_links(),
    )


def _software(device: torch.device, threads: int, processes: int) -> SoftwareFingerprint:
    environment = tuple(f"{name}={os.environ[name]}" for name in _TUNING_VARIABLES if name in os.environ)
    if device.type == "cuda":
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        # With it attention is another kernel than torch's.
        flash_attn = (f"flash-attn={found}",) if (found := flash_attn_version()) else ()
        return SoftwareFingerprint(
            torch=torch.__version__,
            driver=driver_version(),
            cuda=torch.version.cuda or torch.version.hip or "",
            cudnn=str(cudnn or ""),
            nccl=".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call]
            environment=(*environment, cache_state.SETTING, *flash_attn),
        )
    settings = {
        cache_state.SETTING: True,
        host_memory.SETTING: host_memory.keeps_freed_memory(),
        core_binding.SETTING: core_binding.is_bound(processes, threads=threads),
        gloo_threads.SETTING: gloo_threads.can_calm(),
    }
    return SoftwareFingerprint(
        torch=torch.__version__,
        cpu_libraries=_cpu_libraries(),
        environment=(*environment, *(setting for setting, is_so in settings.items() if is_so)),
    )


def _cpu_libraries() -> tuple[str, ...]:
    """Versions of BLAS, oneDNN and OpenMP, and the instruction set that torch chose."""
    lines = (line.strip(" -") for line in torch.__config__.show().splitlines())
    return tuple(sorted(line for line in lines if line.startswith(_CPU_LIBRARY_LINES)))


def network_links() -> tuple[str, ...]:
    """Adapters as `RATE KIND ×count`: InfiniBand and RoCE ports, or physical Ethernet ports where there are none."""
    counts: Counter[str] = Counter()
    for port in sorted(_INFINIBAND.glob("*/ports/*")):
        counts[f"{read_text(port / 'rate')} {read_text(port / 'link_layer')}".strip()] += 1
    if not counts:
        for adapter in sorted(_NETWORK.glob("*")):
            speed = read_text(adapter / "speed")
            if (adapter / "device").exists() and speed.isdigit():
                counts[f"{speed} Mb/s Ethernet"] += 1
    return tuple(f"{link} ×{count}" for link, count in sorted(counts.items()))
