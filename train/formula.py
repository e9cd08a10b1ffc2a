"""Formulas over workload vectors, written once: numpy evaluates them, and export.py traces them into ONNX.

They use numpy's operators and ufuncs only, on columns [rows, 1], so that a value of an ONNX graph (`Value`) can
take the place of the array of workloads [rows, features].

The input columns of the trees round the same in numpy and in ONNX Runtime. A split must fall the same way in both, so
every column is made of products in a fixed order, of quotients, which IEEE 754 rounds in one way, and of whole numbers.
Logarithms are none of these, and trees do not need them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import combinations
from operator import mul
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kernelcast.runtime.operators import Operator
from kernelcast.train.dataset import Array

Column: TypeAlias = Any
"""An array [rows, columns], a number, or a value of an ONNX graph."""

Powers = tuple[int, ...]
"""Exponent per feature of one monomial."""


class Baseline(ABC):
    """The prediction of a regressor before the trees' correction."""

    __slots__ = ()

    @abstractmethod
    def log_us(self, workloads: Array) -> Column:
        """Logarithm of the time in µs, [rows, 1] or a number."""

    def residual_scale(self, workloads: Array) -> Column:
        """Factor on the trees' outputs, [rows, 1] or a number."""
        return 1.0

    def predict_log(self, workloads: Array) -> Array:
        """Logarithm of the time in µs, [rows]."""
        return flat(self.log_us(workloads), len(workloads))


def flat(column: Column, rows: int) -> Array:
    """A column or number as an array [rows]."""
    return np.broadcast_to(np.asarray(column), (rows, 1))[:, 0]


def product(workloads: Column, features: Sequence[int]) -> Column:
    """Product of the features named by number, [rows, 1]; from left to right, as rounding depends on the order."""
    return reduce(mul, [workloads[:, [feature]] for feature in features])


def monomial(workloads: Column, powers: Powers) -> Column:
    """Product of the features, each as often as its exponent states, [rows, 1]."""
    return product(workloads, [feature for feature, power in enumerate(powers) for _ in range(power)])


def weighted_sum(terms: Iterable[tuple[float, Column]]) -> Column:
    return sum(weight * column for weight, column in terms)


INPUTS = ("product", "shapes", "tiles", "aligned", "chunks")

# Kernels round shapes up to multiples of these: a fraction of a warp, a warp, a tile.
_MULTIPLES = (8, 32, 128)
# Matrix products compute their result in tiles, in waves of one tile per multiprocessor: of 108 on an A100, 132 on an
# H100, 148 on a B200. A last wave that is nearly empty takes as long as a full one (NVIDIA, "Matrix multiplication
# background user's guide", wave quantisation).
_TILES = ((128, 128), (256, 128))
_MULTIPROCESSORS = (108, 132, 148)
# A message whose length is no multiple of 128 elements (256 bytes in fp16) is moved with narrower accesses.
_ALIGNMENT = 128
# NCCL cuts messages into slots of 4 MiB / 8 = 512 KiB (its default buffer size and steps): 2^18 elements of fp16.
_SLOT = 2**18


def input_columns(workloads: Column, op: Operator, kind: str = "product") -> Iterator[Column]:
    """Columns of a kind of inputs, [rows, 1] each, of an operator's float32 workloads [rows, features].

    "product": the features and, last, their product. "shapes": also all products of two, and the remainder of each
    feature by typical multiples. "tiles", for matrix products: also the quotients of two, and how much longer whole
    waves of tiles take than the tiles alone. "aligned" and "chunks", for collectives: also the remainder by the
    alignment, and for "chunks" that by slots.
    """
    features, pairs = range(len(op.features)), list(combinations(range(len(op.features)), 2))
    for feature in features:
        yield workloads[:, [feature]]
    # A feature that often equals its partner would make the product count it twice.
    twin = op.equal_unless_measured[0] if op.equal_unless_measured else ""
    yield product(workloads, [feature for feature, name in enumerate(op.features) if name != twin])
    if kind in ("shapes", "tiles"):
        if len(features) > 2:
            yield from (product(workloads, pair) for pair in pairs)
        yield from (_remainder(workloads[:, [f]], multiple) for f in features for multiple in _MULTIPLES)
    if kind == "tiles":
        for one, other in pairs:
            first, second = (np.maximum(workloads[:, [f]], 1.0) for f in (one, other))
            yield first / second
            for rows, columns in _TILES:
                tiles = np.ceil(first / rows) * np.ceil(second / columns)
                yield from (np.ceil(tiles / at_once) * at_once / tiles for at_once in _MULTIPROCESSORS)
    if kind in ("aligned", "chunks"):
        yield _remainder(workloads[:, [0]], _ALIGNMENT)
    if kind == "chunks":
        yield _remainder(workloads[:, [0]], _SLOT)


def tree_inputs(workloads: Array, op: Operator, kind: str = "product") -> npt.NDArray[np.float32]:
    """Columns of a kind of inputs, [rows, columns] in float32."""
    # Products in float32 may overflow far outside the samples; the trees take them as large.
    with np.errstate(over="ignore", invalid="ignore"):
        return np.column_stack(list(input_columns(workloads.astype(np.float32), op, kind)))


def _remainder(column: Column, modulus: int) -> Column:
    """Remainder by a power of two: exact in float32."""
    return column - np.floor(column / modulus) * modulus
