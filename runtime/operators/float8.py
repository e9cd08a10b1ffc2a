"""Linears in 8 and 4 bit: the products alone, and the cast of what they read and of weights."""

from collections.abc import Mapping

from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.operators.elementwise import elementwise
from kernelcast.runtime.operators.gemm import GEMM, GROUPED_GEMM
from kernelcast.runtime.operators.operator import Cost, Direction, Operator, Substitute, Vector, cost

FLOAT8 = "float8_e4m3fn"
FLOAT4 = "float4_e2m1fn_x2"

_IN_16_BIT = frozenset({"logits", "router", "next_token", "adapter_down", "adapter_up"})
_LINEARS = {name: role for name, role in GEMM.roles.items() if name not in _IN_16_BIT}


def _costs(entry_bytes: float, group: str = "") -> Mapping[Direction, Cost]:
    """Of one product, or of `group` of them; an element is a byte, an entry that is read has `entry_bytes`.

    Results have 16 bits, and a weight gradient is accumulated.
    """

    def of(mk: float, kn: float, mn: float, least: float) -> Cost:
        read, result = f"{mk} {group} m k + {{}} {group} k n + {mn} {group} m n", f"2 {group} m k n"
        return cost(flops=result, elements=read.format(kn), least=read.format(least))

    return {
        Direction.FORWARD: of(entry_bytes, entry_bytes, 2, entry_bytes),
        Direction.INPUT_GRADIENT: of(2, entry_bytes, entry_bytes, entry_bytes),
        Direction.WEIGHT_GRADIENT: of(entry_bytes, 6, entry_bytes, 2),
    }


def _same(vector: Vector) -> tuple[Vector, float]:
    return vector, 1.0


def _product(
    like: Operator, name: str, title: str, *, dtype: str = FLOAT8, substitute: Substitute | None = None
) -> Operator:
    groups = "groups" if like is GROUPED_GEMM else ""
    if like.substitute is not None:
        substitute = replace(like.substitute, operator=f"gemm_{name}")
    return replace(
        like,
        name=f"{like.name}_{name}",
        title=f"{like.title.removesuffix(' of a linear, without its bias')} {title}, without casts",
        costs=_costs(0.5 if dtype == FLOAT4 else 1, groups),
        sums={},
        roles=like.roles if groups else _LINEARS,
        dtype=dtype,
        substitute=substitute,
        is_on_request=True,
    )


# Libraries multiply whole tensors by the same kernels as blocks and rows, and no slower.
_ALIKE = Substitute(operator="gemm_float8_tensor", asks=_same)

PER_TENSOR = _product(GEMM, "float8_tensor", "in 8 bit, scaled per tensor")
PER_ROW = _product(GEMM, "float8_row", "in 8 bit, scaled per row", substitute=_ALIKE)
PER_BLOCK = _product(GEMM, "float8_block", "in 8 bit, scaled per block of 128", substitute=_ALIKE)
IN_4_BIT = _product(GEMM, "float4_block", "in 4 bit, scaled per block of 16", dtype=FLOAT4)
EXPERTS_PER_TENSOR = _product(GROUPED_GEMM, "float8_tensor", "in 8 bit, scaled per tensor")
EXPERTS_PER_ROW = _product(GROUPED_GEMM, "float8_row", "in 8 bit, scaled per row")
EXPERTS_PER_BLOCK = _product(GROUPED_GEMM, "float8_block", "in 8 bit, scaled per block of 128")
EXPERTS_IN_4_BIT = _product(GROUPED_GEMM, "float4_block", "in 4 bit, scaled per block of 16", dtype=FLOAT4)

CAST_BYTES = 3
"""Bytes that a cast moves per entry as it is measured: read in 16 bit, written in 8."""

_FEATURES = {"rows": "rows", "columns": "elements"}
CAST = replace(
    elementwise(
        "float8_cast",
        "",
        "an activation, a gradient or a weight cast to 8 bit once; recipes with more passes ask for more rows",
        _FEATURES,
        forward=(1, CAST_BYTES / 2),
        backward=(1, CAST_BYTES / 2),
        is_optional=True,
        is_on_request=True,
    ),
    same_product={Direction.BACKWARD: tuple(_FEATURES)},
)
