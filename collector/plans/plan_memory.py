"""Memory that a point needs, estimated from the operator's tensors, and memory of a device."""

import torch

from kernelcast.collector.benches import Point
from kernelcast.collector.machine.probe_cpu import available_memory_bytes


def point_bytes(point: Point, element_bytes: int) -> int:
    """An upper estimate of the bytes that measuring a point holds at once.

    All reads and writes of forward and backward: every tensor counts once per pass that uses it.
    """
    op = point.law
    if op.per_update:
        # In place: all tensors are read, all but the gradients written. In 16 bit each has a float32 copy.
        elements = (op.moved_bytes(op.directions[0], point.vector, 1) + point.vector[0]) / 2
        return int(elements * (element_bytes if element_bytes >= 4 else element_bytes + 4))
    return int(sum(op.moved_bytes(direction, point.vector, element_bytes) for direction in op.directions))


def memory_of_each_bytes(device: torch.device, processes: int) -> int:
    """Memory for each of `processes` processes of a node: shared on a CPU, separate on GPUs."""
    return device_memory_bytes(device) // (processes if device.type == "cpu" else 1)


def device_memory_bytes(device: torch.device) -> int:
    """Memory of a GPU, or the available memory of this machine."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return available_memory_bytes()
