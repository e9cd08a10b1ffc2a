"""Matrix products: one law for every linear, others for unfused attention, experts, and linears in 8 and 4 bit."""

from collections.abc import Mapping

from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.operators.elementwise import elementwise
from kernelcast.runtime.operators.operator import (
    Cost,
    Direction,
    Operator,
    OperatorClass,
    Substitute,
    Vector,
    as_it_is,
    cost,
    only_role,
    roles,
)

FLOAT8 = "float8_e4m3fn"
FLOAT4 = "float4_e2m1fn_x2"


def _costs(entry_bytes: float, result_bytes: int, group: str = "") -> Mapping[Direction, Cost]:
    """Bytes of one product, or of `group` of them, from the bytes per entry of inputs and of results.

    A weight gradient is accumulated: kn is written once, then read twice and written.
    """

    def of(mk: float, kn: float, mn: float, least: float) -> Cost:
        moved, flops = f"{mk} {group} m k + {{}} {group} k n + {mn} {group} m n", f"2 {group} m k n"
        return cost(flops=flops, elements=moved.format(kn), least=moved.format(least))

    return {
        Direction.FORWARD: of(entry_bytes, entry_bytes, result_bytes, entry_bytes),
        Direction.INPUT_GRADIENT: of(result_bytes, entry_bytes, entry_bytes, entry_bytes),
        Direction.WEIGHT_GRADIENT: of(entry_bytes, 3 * result_bytes, entry_bytes, result_bytes),
    }


GEMM = Operator(
    name="gemm",
    title="matrix product [m, k] × [k, n] of a linear, without its bias",
    operator_class=OperatorClass.COMPUTE,
    features={"m": "rows", "k": "columns in", "n": "columns out"},
    costs={
        **_costs(1, 1),
        Direction.BACKWARD: cost(
            flops="4 m k n", elements="2 m k + 4 k n + 2 m n", least="2 m k + 2 k n + 1 m n"
        ),
    },
    sums={Direction.BACKWARD: (Direction.INPUT_GRADIENT, Direction.WEIGHT_GRADIENT)},
    same_product={Direction.INPUT_GRADIENT: ("m", "n", "k"), Direction.WEIGHT_GRADIENT: ("k", "m", "n")},
    divisible=("m", "k", "n"),
    roles=roles(
        ("qkv", "Linear1", "projection to queries, keys and values"),
        ("attention_output", "Linear2", "attention output projection"),
        ("recurrent_in", "", "projection to what a Mamba-2 layer or gated delta net reads"),
        ("recurrent_out", "", "their output projection"),
        ("mlp_up", "Linear3", "MLP up projection"),
        ("mlp_gate_up", "Linear3 (SwiGLU)", "MLP gate and up projections as one product"),
        ("mlp_down", "Linear4", "MLP down projection"),
        ("logits", "Final_Linear", "output projection to the vocabulary"),
        ("query_down", "", "projection to the low rank of queries"),
        ("query_up", "", "projection from the low rank to queries"),
        ("kv_down", "", "projection to the low rank of keys and values, and to the rotated part of keys"),
        ("kv_up", "", "projection from the low rank to keys and values"),
        ("router", "", "scores of the experts"),
        ("latent_down", "", "projection to the size that experts read (LatentMoE)"),
        ("latent_up", "", "projection of the experts' sum back to a hidden state"),
        ("shared_gate_up", "", "gate and up projections of the experts that every token goes to"),
        ("shared_down", "", "their down projection"),
        (
            "next_token",
            "",
            "hidden state and embedding of the next token projected to one (multi-token prediction)",
        ),
        ("adapter_down", "", "projection to the low rank of an adapter (LoRA)"),
        ("adapter_up", "", "projection from the low rank of an adapter"),
    ),
)

BATCHED_GEMM = Operator(
    name="batched_gemm",
    title="a matrix product [m, k] × [k, n] per head of every sample",
    operator_class=OperatorClass.COMPUTE,
    features={"batch": "heads", "m": "rows", "k": "columns in", "n": "columns out"},
    costs={
        Direction.FORWARD: cost(flops="2 batch m k n", elements="1 batch m k + 1 batch k n + 1 batch m n"),
        Direction.BACKWARD: cost(
            flops="4 batch m k n",
            elements="2 batch m k + 2 batch k n + 2 batch m n",
            least="2 batch m k + 2 batch k n + 1 batch m n",
        ),
    },
    roles=roles(
        ("attention_scores", "QK^T", "attention scores, queries × keys"),
        ("attention_values", "·V", "attention weights × values"),
    ),
)


GROUPED_WITHIN = 2.1
"""Nine of ten grouped products are within this factor of the same number of single products."""


def _one_by_one(vector: Vector) -> tuple[Vector, float]:
    """The product of one group, as often as there are groups."""
    groups, m, k, n = vector
    return (m, k, n), float(groups)


GROUPED_GEMM = Operator(
    name="grouped_gemm",
    title="a matrix product [m, k] × [k, n] per group, each with a weight of its own, in one call",
    operator_class=OperatorClass.COMPUTE,
    # Groups of unequal sizes count with their mean: how uneven they are is no feature.
    features={"groups": "experts", "m": "rows of each group", "k": "columns in", "n": "columns out"},
    costs=_costs(1, 1, "groups"),
    same_product={
        Direction.INPUT_GRADIENT: ("groups", "m", "n", "k"),
        Direction.WEIGHT_GRADIENT: ("groups", "k", "m", "n"),
    },
    roles=roles(
        ("experts_gate_up", "", "gate and up projections of the experts that a device holds"),
        ("experts_up", "", "up projection of the experts that a device holds"),
        ("experts_down", "", "down projection of the experts that a device holds"),
    ),
    # Of a B200's rows; one product of all rows is farther off (docs/trust.md, Substitutes).
    substitute=Substitute(operator="gemm", asks=_one_by_one, within=GROUPED_WITHIN),
)

MOE = Operator(
    name="moe",
    title="experts of a layer as one call: their gated MLPs on rows sent to them, summed per token; without the router",
    operator_class=OperatorClass.COMPUTE,
    # `rows` are pairs of a token and an expert of this device, tokens · experts per token where it holds all of them;
    # `width` is the width of one expert on this device. How unevenly rows are spread is no feature.
    features={
        "tokens": "tokens",
        "rows": "rows of all experts",
        "d": "elements",
        "width": "elements",
        "experts": "experts",
    },
    # Gate and up as one product of 2 · width columns, SwiGLU, down; the rows of a token are then summed. Some experts
    # may get no row, so that only the weights of one are certain to be read.
    costs={
        Direction.FORWARD: cost(
            flops="6 rows d width",
            elements="2 tokens d + 3 experts d width + 6 rows width + 2 rows d",
            least="1 tokens d + 3 d width",
        ),
    },
    roles=only_role("", "experts of a layer as inference frameworks run them"),
    is_on_request=True,
)


_IN_16_BIT = frozenset({"logits", "router", "next_token", "adapter_down", "adapter_up"})
_LINEARS = {name: role for name, role in GEMM.roles.items() if name not in _IN_16_BIT}


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
        # An element is a byte; results have 16 bits.
        costs=_costs(0.5 if dtype == FLOAT4 else 1, 2, groups),
        sums={},
        roles=like.roles if groups else _LINEARS,
        dtype=dtype,
        substitute=substitute,
        is_on_request=True,
    )


# Libraries multiply whole tensors by the same kernels as blocks and rows, and no slower.
_ALIKE = Substitute(operator="gemm_float8_tensor", asks=as_it_is)

PER_TENSOR = _product(GEMM, "float8_tensor", "in 8 bit, scaled per tensor")
PER_ROW = _product(GEMM, "float8_row", "in 8 bit, scaled per row", substitute=_ALIKE)
PER_BLOCK = _product(GEMM, "float8_block", "in 8 bit, scaled per block of 128", substitute=_ALIKE)
IN_4_BIT = _product(GEMM, "float4_block", "in 4 bit, scaled per block of 16", dtype=FLOAT4)
EXPERTS_PER_TENSOR = _product(GROUPED_GEMM, "float8_tensor", "in 8 bit, scaled per tensor")
EXPERTS_PER_ROW = _product(GROUPED_GEMM, "float8_row", "in 8 bit, scaled per row")
EXPERTS_PER_BLOCK = _product(GROUPED_GEMM, "float8_block", "in 8 bit, scaled per block of 128")
EXPERTS_IN_4_BIT = _product(GROUPED_GEMM, "float4_block", "in 4 bit, scaled per block of 16", dtype=FLOAT4)

CAST_BYTES = 3
"""Bytes that a measured cast moves per entry: read in 16 bit, written in 8."""

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
