"""What a search takes from the bundle where nothing is said: devices per node, and memory of a device."""

from collections.abc import Sequence

from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.errors import UsageError

_GIB = 2**30


def usual_gpus_per_node(bundle: Bundle, gpus: Sequence[int]) -> int:
    """Devices per node of the bundle's fabric; a bundle without one puts the largest job on one node.

    Raises:
        UsageError: the bundle knows several.
    """
    sizes = sorted({fabric.gpus_per_node for fabric in bundle.manifest.fabric})
    if len(sizes) > 1:
        known = ", ".join(map(str, sizes))
        raise UsageError(
            f"gpus_per_node is not given, and bundle {bundle.path} was measured on nodes of {known}"
        )
    return sizes[0] if sizes else max(gpus)


def usual_gpu_memory_bytes(bundle: Bundle) -> int | None:
    """Memory of the smallest GPU that was measured; None when no size is known, or only a whole machine's."""
    devices = [device for device in bundle.manifest.compute if device.kind != "cpu"]
    sizes = [device.memory_gib for device in devices if device.memory_gib]
    return min(sizes) * _GIB if sizes else None
