"""Linears in 8 bit, scaled per tensor or per block: products with the casts of what they read; casts of weights."""

from collections.abc import Mapping

from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.operators.elementwise import elementwise
from kernelcast.runtime.operators.gemm import GEMM, GROUPED_GEMM
from kernelcast.runtime.operators.operator import Cost, Direction, Operator, cost

FLOAT8 = "float8_e4m3fn"

_IN_16_BIT = frozenset({"logits", "router", "next_token", "adapter_down", "adapter_up"})
_LINEARS = {name: role for name, role in GEMM.roles.items() if name not in _IN_16_BIT}


def _costs(group: str = "") -> Mapping[Direction, Cost]:
    """Of one product, or of `group` of them; an element is a byte.

    16-bit inputs are cast first: for the forward pass the input [m, k], for the input's gradient the output's gradient
    [m, n]. The weight's gradient reads transposed copies of both: Hopper's 8-bit products take one layout only (cuBLAS,
    cublasLtMatmul). Results have 16 bits, and a weight gradient is accumulated. Kernels of other operators may cast and
    copy too, so the lower bounds contain neither.
    """

    def moved(mk: float, kn: float, mn: float) -> str:
        return f"{mk} {group} m k + {kn} {group} k n + {mn} {group} m n"

    def of(moves: tuple[float, float, float], least: tuple[float, float, float]) -> Cost:
        return cost(flops=f"2 {group} m k n", elements=moved(*moves), least=moved(*least))

    return {
        Direction.FORWARD: of((4, 1, 2), (1, 1, 2)),
        Direction.INPUT_GRADIENT: of((2, 1, 4), (2, 1, 1)),
        Direction.WEIGHT_GRADIENT: of((3, 6, 3), (1, 2, 1)),
    }


def _linear(scaled: str) -> Operator:
    return replace(
        GEMM,
        name=f"gemm_float8_{scaled}",
        title=f"matrix product of a linear in 8 bit, scaled per {scaled}, with the casts of what it reads",
        costs=_costs(),
        sums={},
        roles=_LINEARS,
        dtype=FLOAT8,
        is_on_request=True,
    )


def _experts(scaled: str) -> Operator:
    substitute = GROUPED_GEMM.substitute
    assert substitute is not None
    return replace(
        GROUPED_GEMM,
        name=f"grouped_gemm_float8_{scaled}",
        title=f"matrix products of experts in 8 bit, scaled per {scaled}, with the casts of what they read",
        costs=_costs("groups"),
        substitute=replace(substitute, operator=f"gemm_float8_{scaled}"),
        dtype=FLOAT8,
        is_on_request=True,
    )


PER_TENSOR = _linear("tensor")
PER_BLOCK = _linear("block")
EXPERTS_PER_TENSOR = _experts("tensor")
EXPERTS_PER_BLOCK = _experts("block")

CAST = replace(
    elementwise(
        "float8_cast",
        "",
        "weights cast to 8 bit, as they are and transposed",
        {"rows": "rows", "columns": "elements"},
        # Elements of 16 bits: each is read, and written twice in 8.
        forward=(1, 2),
        backward=None,
        is_optional=True,
    ),
    is_on_request=True,
)
