"""How long a device needs at least for some work, by its peaks: what operators carry over to other devices by."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Self

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.hardware.devices import Device
from kernelcast.runtime.operators import Direction, Operator, OperatorClass
from kernelcast.runtime.operators.operator import evaluate
from kernelcast.runtime.record import Record, above

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LAUNCH_FLOOR_US = 3.0
"""No kernel is shorter: the shortest of 180,000 measured on an A100 and a GH200 take 3.2 µs."""
_US_PER_S = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates(Record):
    """Peak rates of a device: of matrix products in one element type, and of its memory."""

    device: str
    flops_per_s: Annotated[float, above(0)]
    bytes_per_s: Annotated[float, above(0)]

    @classmethod
    def of(cls, device: Device, dtype: str) -> Self | None:
        """Rates of a device of the table; None if it does not compute in `dtype`."""
        flops_per_s = device.peak_flops_per_s(dtype)
        return (
            None
            if flops_per_s is None
            else cls(device=device.name, flops_per_s=flops_per_s, bytes_per_s=device.memory_bytes_per_s)
        )

    def roofline_us(
        self, op: Operator, direction: Direction, vectors: Sequence[Sequence[float]], element_bytes: int
    ) -> "NDArray[np.float64]":
        """Least time of each workload, float64 [vectors] in µs: computing or moving, and the launch of a kernel.

        Only matrix products and attention are limited by computing (Williams et al., CACM 52, 2009).
        """
        import numpy as np  # only here: reading a bundle does not need it

        found: NDArray[np.float64] = np.maximum(*self.parts_us(op, direction, vectors, element_bytes))
        return found + LAUNCH_FLOOR_US

    def parts_us(
        self, op: Operator, direction: Direction, vectors: Sequence[Sequence[float]], element_bytes: int
    ) -> tuple["NDArray[np.float64]", "NDArray[np.float64]"]:
        """Least times of computing and of moving each workload, two float64 [vectors] in µs."""
        import numpy as np

        columns = dict(zip(op.features, np.array(vectors, dtype=np.float64).T, strict=True))
        cost = op.costs[direction]
        moved_us = element_bytes * evaluate(cost.elements, columns) / self.bytes_per_s * _US_PER_S
        is_limited = op.operator_class is OperatorClass.COMPUTE
        computed_us = evaluate(cost.flops, columns) / self.flops_per_s * _US_PER_S if is_limited else 0.0
        return np.broadcast_to(computed_us, len(vectors)), np.broadcast_to(moved_us, len(vectors))
