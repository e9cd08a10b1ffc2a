"""What the trees see of a workload vector: columns that round alike in numpy and in ONNX Runtime.

A split must fall the same way in both, so every column is made of plain products in a fixed order, and of remainders
by powers of two, which are exact in float32. Logarithms are neither, and trees do not need them.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from kernelcast.train.dataset import Array

INPUTS = ("product", "shapes", "aligned", "chunks")

# Half a warp's and a whole tile's worth of elements: kernels round shapes up to such multiples.
_TILES = (8, 32, 128)
# A message whose length is no multiple of 128 elements (256 bytes in fp16) is moved with narrower accesses.
_ALIGNMENT = 128
# NCCL cuts messages into slots of 4 MiB / 8 = 512 KiB (its default buffer size and steps): 2^18 elements of fp16.
_SLOT = 2**18


@dataclass(frozen=True, slots=True)
class InputColumn:
    """Product of the features named by number, in this order; with a `modulus`, a power of two, its remainder."""

    features: tuple[int, ...]
    modulus: int = 0


def input_columns(kind: str, features: int) -> tuple[InputColumn, ...]:
    """Columns of a kind of inputs, for a workload vector of so many features.

    "product": the features and, last, their product. "shapes": also all products of two, and what each feature leaves
    over in tiles. "aligned" and "chunks", for collectives: also whether the entries are aligned, and for "chunks" what
    they leave over in slots.
    """
    single = [InputColumn((feature,)) for feature in range(features)]
    columns = [*single, InputColumn(tuple(range(features)))]
    if kind == "shapes":
        if features > 2:
            columns += [InputColumn(pair) for pair in combinations(range(features), 2)]
        columns += [InputColumn((feature,), tile) for feature in range(features) for tile in _TILES]
    if kind in ("aligned", "chunks"):
        columns.append(InputColumn((0,), _ALIGNMENT))
    if kind == "chunks":
        columns.append(InputColumn((0,), _SLOT))
    return tuple(columns)


def tree_inputs(workloads: Array, kind: str = "product") -> npt.NDArray[np.float32]:
    """Columns of a kind of inputs, [rows, columns] in float32."""
    single = workloads.astype(np.float32)
    return np.column_stack([_column(single, column) for column in input_columns(kind, single.shape[1])])


def _column(single: npt.NDArray[np.float32], column: InputColumn) -> npt.NDArray[np.float32]:
    first, *others = column.features
    product = single[:, first].copy()
    # Products in float32 may overflow far outside the samples; the trees take them as large.
    with np.errstate(over="ignore"):
        for feature in others:
            product *= single[:, feature]
    if column.modulus:
        modulus = np.float32(column.modulus)
        product -= np.floor(product / modulus) * modulus
    return product
