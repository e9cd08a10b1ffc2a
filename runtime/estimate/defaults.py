"""Defaults that a bundle or a fabric gives to a question: devices per node, and memory of a device."""

from kernelcast.runtime.answers.fabric_choice import FabricBundle, FabricChoice
from kernelcast.runtime.bundle.described_fabric import measured_fabrics
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.errors import UsageError


def usual_gpus_per_node(bundle: Bundle) -> int | None:
    """Devices per node of the bundle's fabric, the measured one where there is one; None without any.

    Raises:
        UsageError: the bundle knows several.
    """
    known = bundle.manifest.fabric
    sizes = sorted({fabric.gpus_per_node for fabric in measured_fabrics(known) or known})
    if len(sizes) > 1:
        nodes = ", ".join(map(str, sizes))
        raise UsageError(
            f"gpus_per_node is not given, and bundle {bundle.path} was measured on nodes of {nodes}"
        )
    return sizes[0] if sizes else None


def chosen_gpus_per_node(fabric: FabricChoice | None) -> int | None:
    """Devices per node of a fabric that is asked for; None without one.

    Raises:
        UsageError: it is a bundle that knows several.
    """
    return (
        usual_gpus_per_node(fabric.bundle)
        if isinstance(fabric, FabricBundle)
        else (None if fabric is None else fabric.devices_per_node)
    )


def usual_gpu_memory_bytes(bundle: Bundle) -> int | None:
    """Memory of the smallest GPU that was measured; None where no size is known. A CPU has that of a whole machine."""
    devices = [device for device in bundle.manifest.compute if device.kind != "cpu"]
    return min((device.memory_gib << 30 for device in devices if device.memory_gib), default=None)
