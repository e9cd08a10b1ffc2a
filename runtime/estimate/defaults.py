"""Defaults that a bundle gives to a question: devices per node, and memory of a device."""

from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.errors import UsageError


def usual_gpus_per_node(bundle: Bundle) -> int | None:
    """Devices per node of the bundle's fabric; None without one.

    Raises:
        UsageError: the bundle knows several.
    """
    sizes = sorted({fabric.gpus_per_node for fabric in bundle.manifest.fabric})
    if len(sizes) > 1:
        known = ", ".join(map(str, sizes))
        raise UsageError(
            f"gpus_per_node is not given, and bundle {bundle.path} was measured on nodes of {known}"
        )
    return sizes[0] if sizes else None


def usual_gpu_memory_bytes(bundle: Bundle) -> int | None:
    """Memory of the smallest GPU that was measured; None where no size is known. A CPU has that of a whole machine."""
    devices = [device for device in bundle.manifest.compute if device.kind != "cpu"]
    return min((device.memory_gib << 30 for device in devices if device.memory_gib), default=None)
