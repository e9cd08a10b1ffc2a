"""A call of a trace as an operator of the table at a workload, or the reason why it is not recognised."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
DTYPES: Mapping[str, str] = _DATA["dtypes"]
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

_FACTORS: Mapping[str, tuple[int, int]] = _DATA["factors"]
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
