"""Defaults that a bundle or a fabric gives to a question: devices per node, a device's memory, its link to the host."""

from kernelcast.runtime.answers.fabric_choice import FabricBundle, FabricChoice
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.bundle.manifest import measured_fabrics
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.devices import device_named
from kernelcast.runtime.hardware.fabric import host_link


def usual_gpus_per_node(bundle: Bundle) -> int | None:
    """Devices per node of the bundle's fabric, first the measured one; None without, UsageError with several."""
    known = bundle.manifest.fabric
    sizes = sorted({fabric.gpus_per_node for fabric in measured_fabrics(known) or known})
    if len(sizes) > 1:
        nodes = ", ".join(map(str, sizes))
        raise UsageError(
            f"gpus_per_node is not given, and bundle {bundle.path} was measured on nodes of {nodes}"
        )
    return sizes[0] if sizes else None


def chosen_gpus_per_node(fabric: FabricChoice | None) -> int | None:
    """Devices per node of the requested fabric; None without one; UsageError of a bundle that knows several."""
    if fabric is None:
        return None
    if isinstance(fabric, FabricBundle):
        return usual_gpus_per_node(fabric.bundle)
    return fabric.devices_per_node


def usual_gpu_memory_bytes(bundle: Bundle) -> int | None:
    """Memory of the smallest measured GPU as its driver reported it, at most the device table's (names may count the
    memory of a CPU too); None if no size is known.
    """
    sizes = (_own_memory_bytes(one) for one in bundle.manifest.compute if one.kind != "cpu")
    return min((size for size in sizes if size), default=None)


RESERVED_BYTES = 3 << 29
"""Memory of a GPU that training cannot use: driver, CUDA context and libraries (docs/memory.md)."""


def has_gpus(bundle: Bundle) -> bool:
    """Whether a GPU was measured, of whose memory driver, CUDA and NCCL take a part."""
    return any(one.kind != "cpu" for one in bundle.manifest.compute)


def usual_reserved_bytes(bundle: Bundle) -> int:
    """Memory of a device that training cannot use; 0 if no GPU was measured."""
    return RESERVED_BYTES if has_gpus(bundle) else 0


def host_link_bytes_per_s(bundle: Bundle) -> float | None:
    """The published rate of the link to the host, for the first known device; None without one."""
    links = (host_link(one.device_name) for one in bundle.manifest.compute)
    return next((link.bytes_per_s for link in links if link is not None), None)


def _own_memory_bytes(fingerprint: ComputeFingerprint) -> int | None:
    known = device_named(fingerprint.device_name)
    sizes = [fingerprint.memory_gib << 30, known.memory_bytes if known else 0]
    return min((size for size in sizes if size), default=None)
