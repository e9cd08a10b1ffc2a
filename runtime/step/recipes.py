"""Recipes of linears in 8 and 4 bit: which product runs, what is cast, which copies are kept.

What TransformerEngine does, and torchao for rows. Bytes are per entry, scales included: one per tensor or row weighs
nothing, a block of 128 has 4 bytes, one of 32 (MXFP8) or of 16 (NVFP4) has 1.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from kernelcast.runtime.request.fields import Float8Recipe, FrozenWeights


class Recipe(NamedTuple):
    """One recipe.

    - `units`: the peak of the device table that its products run at;
    - `product`: the operator of a product, `gemm_` or `grouped_gemm_` before it;
    - `entry_bytes`: of one cast copy;
    - `cast_bytes`: read and written where an activation or a gradient is cast, both copies together;
    - `one_copy_bytes`: the same where no weight gradient reads the transposed copy, as the weight is frozen;
    - `weight_bytes`: the same where a weight is cast after an update;
    - `copies`: of a weight, as it is and transposed.
    """

    units: str
    product: str
    entry_bytes: float
    cast_bytes: float
    one_copy_bytes: float
    weight_bytes: float
    copies: int = 2


FROZEN_BYTES: Mapping[FrozenWeights, float] = MappingProxyType(
    {"nf4": 0.5 + 4 / 64, "nf4_double": 0.5 + 1 / 64 + 4 / (64 * 256)}
)
"""Bytes per entry of a frozen weight in 4 bit with its scales (arXiv 2305.14314, section 3: one per 64 entries; double
quantization keeps these in 8 bit, with a scale of their own per 256)."""

_BLOCK, _MX, _NV = 1 + 4 / 128, 1 + 1 / 32, 0.5 + 1 / 16

RECIPES: Mapping[Float8Recipe, Recipe] = MappingProxyType(
    {
        # Largest entry of the tensor (2 bytes read), then read again and written twice.
        "tensorwise": Recipe("float8", "float8_tensor", 1, 6, 5, 6),
        # Scales of earlier steps: no pass for the largest entry.
        "delayed": Recipe("float8", "float8_tensor", 1, 4, 3, 4),
        # Rows and columns have scales of their own: two passes over each.
        "rowwise": Recipe("float8", "float8_row", 1, 10, 5, 10),
        "blockwise": Recipe("float8", "float8_block", _BLOCK, 2 + 2 * _BLOCK, 2 + _BLOCK, 2 + 2 * _BLOCK),
        # Quantised along rows and along columns from 16 bit.
        "mxfp8": Recipe("mxfp8", "float8_tensor", _MX, 2 + 2 * _MX, 2 + _MX, 2 + 2 * _MX),
        # The largest entry; rows; columns after a Hadamard transform, which reads 16 bit again.
        "nvfp4": Recipe("nvfp4", "float4_block", _NV, 6 + 2 * _NV, 4 + _NV, 4 + 2 * _NV),
    }
)
