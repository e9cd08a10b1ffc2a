"""What a search takes from the bundle where nothing is said: devices per node, and memory of a device."""

from collections.abc import Sequence

from kernelcast.runtime.bundle import Bundle
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.memory.states import PRECISIONS

_GIB = 2**30


def training_dtype(bundle: Bundle) -> str:
    """The data type that the operators were measured in, if memory is known for it; else float16."""
    return bundle.manifest.dtype if bundle.manifest.dtype in PRECISIONS else "float16"


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
    """Memory of the smallest device that was measured; None when no size is known."""
    sizes = [compute.memory_gib for compute in bundle.manifest.compute if compute.memory_gib]
    return min(sizes) * _GIB if sizes else None
