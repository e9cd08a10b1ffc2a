"""A call of a trace as an operator of the table at a workload, or the reason why it is none."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

DTYPES: Mapping[str, str] = {
    # as the profiler writes the types of tensors …
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz", "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
    # … and of messages
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16",
}  # fmt: skip
"""The profiler's names of element types, and torch's."""


@dataclass(frozen=True, slots=True)
class RecognisedCall:
    """An operator of the table at a workload. `role` is empty where the trace does not determine it."""

    operator: str
    vector: tuple[int, ...]
    role: str = ""
    variant: str = ""
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Unrecognised:
    """Why a call is no operator of the table."""

    reason: str


Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]
"""Shapes of a call's inputs, in their order."""
Recognition = RecognisedCall | Unrecognised

NO_OPERATOR = Unrecognised("no operator for it")
OTHER_SHAPE = Unrecognised("shapes that the operator here does not have")
NO_SHAPES = Unrecognised("shapes were not recorded (record_shapes)")
NO_TYPE = Unrecognised("its element type is none of a training step")

# Positions of the two factors among the inputs.
_FACTORS = {
    "aten::mm": (0, 1), "aten::addmm": (1, 2), "aten::bmm": (0, 1), "aten::baddbmm": (1, 2),
    "aten::_scaled_mm": (0, 1), "aten::_addmm_activation": (1, 2), "aten::_int_mm": (0, 1),
}  # fmt: skip
_LINEAR = "aten::linear"


def factors(name: str, dims: Shapes) -> tuple[Shape, Shape]:
    """Shapes of the two factors of a matrix product; empty where they were not recorded."""
    left, right = _FACTORS[name]
    return (dims[left], dims[right]) if len(dims) > right else ((), ())


def product_shape(name: str, dims: Shapes) -> tuple[int, int, int, int] | None:
    """Batch, m, k and n of [batch, m, k] times [batch, k, n]; None where the call is no product of known shapes."""
    if name == _LINEAR and len(dims) >= 2 and dims[0] and len(dims[1]) == 2:
        return 1, prod(dims[0][:-1]), dims[1][1], dims[1][0]
    left, right = factors(name, dims) if name in _FACTORS else ((), ())
    if len(left) != len(right) or len(left) not in (2, 3) or left[-1] != right[-2] or left[:-2] != right[:-2]:
        return None
    return prod(left[:-2]), left[-2], left[-1], right[-1]
