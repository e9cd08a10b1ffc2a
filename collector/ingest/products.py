"""Matrix products by the shapes of their inputs, whether they are operators of the table or not."""

from math import prod

from kernelcast.collector.ingest.points import Shapes

# Where the two factors stand among the inputs.
_FACTORS = {
    "aten::mm": (0, 1), "aten::addmm": (1, 2), "aten::bmm": (0, 1), "aten::baddbmm": (1, 2),
    "aten::_scaled_mm": (0, 1), "aten::_addmm_activation": (1, 2), "aten::_int_mm": (0, 1),
}  # fmt: skip
_LINEAR = "aten::linear"


def product_shape(name: str, dims: Shapes) -> tuple[int, int, int, int] | None:
    """Batch, m, k and n of [batch, m, k] times [batch, k, n]; None where the call is no product of known shapes."""
    if name == _LINEAR and len(dims) >= 2 and dims[0] and len(dims[1]) == 2:
        return 1, prod(dims[0][:-1]), dims[1][1], dims[1][0]
    if name not in _FACTORS or len(dims) <= max(_FACTORS[name]):
        return None
    left, right = (dims[place] for place in _FACTORS[name])
    if len(left) != len(right) or len(left) not in (2, 3) or left[-1] != right[-2] or left[:-2] != right[:-2]:
        return None
    return prod(left[:-2]), left[-2], left[-1], right[-1]
