"""How much memory a point needs, estimated from the operator's tensors, and how much there is."""

import torch

from kernelcast.collector.machine.probe_cpu import available_memory_bytes
from kernelcast.collector.plans.plan import Point

_OF_A_STAGE_16_BIT = 5 * 4 + 2 * 2
"""Bytes per parameter of mixed precision: weight and gradient in 16 bit, their float32 copies, both moments, and what
the step casts."""


_ON_THE_BUFFER = ("gradient_clip", "gradient_zero")  # which touch the gradients alone


def point_bytes(point: Point, element_bytes: int) -> int:
    """Bytes of the tensors that measuring a point holds at once, at most.

    What forward and backward read and write: every tensor counts once per pass that uses it, an upper estimate.
    """
    op = point.operator
    if "parameters" in op.features and op.name not in _ON_THE_BUFFER:
        # Parameter, gradient and both moments.
        per_parameter = 4 * element_bytes if element_bytes >= 4 else _OF_A_STAGE_16_BIT
        return point.vector[0] * per_parameter
    return int(sum(op.moved_bytes(direction, point.vector, element_bytes) for direction in op.directions))


def memory_of_each_bytes(device: torch.device, processes: int) -> int:
    """Memory for each of so many processes of a node: a CPU's share theirs, of GPUs each has its own."""
    return device_memory_bytes(device) // (processes if device.type == "cpu" else 1)


def device_memory_bytes(device: torch.device) -> int:
    """Memory of a GPU, or what this machine has available for a CPU's processes."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return available_memory_bytes()
