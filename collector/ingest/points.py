"""What a recognised call is: an operator of the table at a workload, or the reason why it is none."""

from collections.abc import Mapping
from dataclasses import dataclass

DTYPES: Mapping[str, str] = {
    # as the profiler writes the types of tensors …
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz", "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
    # … and those of messages
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16",
}  # fmt: skip
"""The profiler's names of element types, and torch's."""


@dataclass(frozen=True, slots=True)
class Point:
    """An operator of the table at a workload; `role` is empty where the trace does not tell it."""

    operator: str
    dtype: str
    vector: tuple[int, ...]
    role: str = ""
    variant: str = ""


@dataclass(frozen=True, slots=True)
class Unclear:
    """Why a call is no operator of the table."""

    reason: str


Shapes = tuple[tuple[int, ...], ...]
"""Of a call's inputs, in their order."""
Found = Point | Unclear

NO_OPERATOR = Unclear("no operator for it")
OTHER_SHAPE = Unclear("shapes that the operator here does not have")
NO_SHAPES = Unclear("shapes were not recorded (record_shapes)")
NO_TYPE = Unclear("its element type is none of a training step")
