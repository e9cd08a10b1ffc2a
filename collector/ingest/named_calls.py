"""Library calls that are operators of the table by their name: rows of data, with how their inputs are read.

The profiler records an `autograd.Function` by its class, a custom operator by its schema, and a kernel that
torch.compile wrote by the operators it fused. A backward pass needs no row: autograd names the forward call.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from kernelcast.collector.ingest.recognised_calls import (
    OTHER_SHAPE,
    RecognisedCall,
    Recognition,
    Shape,
    Shapes,
    Unrecognised,
)

Reading = Callable[[Shapes], Shape | None]
"""The workload vector from the shapes of the inputs; None for shapes that the operator does not have."""
NOT_CAUSAL = Unrecognised("attention that is not causal, or does not say (Concrete Inputs)")


def rows(dims: Shapes, place: int = 0, halves: int = 1) -> Shape | None:
    """[b, l, d] of the input at `place`; rows of a matrix count as tokens of one sample."""
    shape = dims[place] if len(dims) > place else ()
    if len(shape) not in (2, 3) or shape[-1] % halves:
        return None
    *tokens, width = shape
    return (*(tokens if len(tokens) == 2 else (1, *tokens)), width // halves)


_gated = partial(rows, halves=2)
"""Gate and up side by side in one input."""


def _first_rows(dims: Shapes) -> Shape | None:
    """The first input of two or three dimensions: a compiled kernel orders its inputs its own way."""
    return next((rows((shape,)) for shape in dims if len(shape) in (2, 3)), None)


def _first_scores(dims: Shapes) -> Shape | None:
    return next((scores((shape,)) for shape in dims if len(shape) in (3, 4)), None)


def scores(dims: Shapes) -> Shape | None:
    """[b, heads, queries, keys]; three dimensions are the heads of one sample."""
    shape = dims[0] if dims else ()
    return shape if len(shape) == 4 else (1, *shape) if len(shape) == 3 else None


def _square_scores(dims: Shapes) -> Shape | None:
    """[b · heads, queries, keys]."""
    found = scores(dims)
    return None if found is None else (found[0] * found[1], *found[2:])


def _attention(dims: Shapes, heads_at: int) -> Shape | None:
    """[b, tokens, heads, kv_heads, head size] from 4-D queries and keys; heads at axis `heads_at` (1 or 2)."""
    if len(dims) < 2 or len(dims[0]) != 4 or len(dims[1]) != 4:
        return None
    tokens_at = 3 - heads_at
    query, key = ((one[0], one[tokens_at], one[heads_at], one[3]) for one in dims[:2])
    b, tokens, heads, size = query
    is_grouped = key == (b, tokens, key[2], size) and key[2] and heads % key[2] == 0
    return (b, tokens, heads, key[2], size) if is_grouped else None


heads_first = partial(_attention, heads_at=1)
"""Queries and keys [b, heads, tokens, head size]."""
_tokens_first = partial(_attention, heads_at=2)
"""Queries and keys [b, tokens, heads, head size]."""


def _with_values(dims: Shapes) -> Shape | None:
    """Heads first, with values shaped like the keys."""
    return heads_first(dims) if dims[1:2] == dims[2:3] else None


def _packed(dims: Shapes) -> Shape | None:
    """Queries, keys and values in one [b, tokens, 3, heads, head size]."""
    if not dims or len(dims[0]) != 5 or dims[0][2] != 3:
        return None
    b, tokens, _, heads, size = dims[0]
    return b, tokens, heads, heads, size


def _weight_first(dims: Shapes) -> Shape | None:
    """A weight [n, k] and an input [..., k], the order of TransformerEngine's products."""
    if len(dims) < 2 or len(dims[0]) != 2 or len(dims[1]) < 2 or dims[0][1] != dims[1][-1]:
        return None
    return prod(dims[1][:-1]), dims[0][1], dims[0][0]


def _looked_up(dims: Shapes) -> Shape | None:
    """A table [rows, width], and indices of any shape."""
    return (prod(dims[1]), *dims[0]) if len(dims) > 1 and len(dims[0]) == 2 and dims[1] else None


def _matrix(dims: Shapes) -> Shape | None:
    """[l, d], tokens of one sample."""
    return rows(dims) if len(dims[0]) == 2 else None


@dataclass(frozen=True, slots=True)
class NamedCall:
    """The operator of calls with these names, or why there is none (`reason`); input `causal_at` is the causal flag."""

    names: tuple[str, ...]
    operator: str = ""
    reading: Reading = rows
    variant: str = ""
    causal_at: int | None = None
    reason: str = ""


NAMED_CALLS = (
    NamedCall(
        ("LigerRMSNormFunction", "FusedRMSNormAffineFunction", "FusedRMSNormAffineMixedDtypesFunction", "_RMSNorm"),
        "rms_norm", rows,
    ),
    NamedCall(
        ("LigerLayerNormFunction", "FusedLayerNormAffineFunction", "FusedLayerNormAffineMixedDtypesFunction",
         "FastLayerNormFN", "FusedLayerNormAffine", "_LayerNorm"),
        "layer_norm", rows,
    ),
    NamedCall(("LigerSiLUMulFunction",), "swiglu", rows),
    NamedCall(("SwiGLUFunction", "BiasSwiGLUFunction"), "swiglu", _gated),
    NamedCall(("aten::gelu", "GeLUFunction", "_FusedBiasGelu"), "gelu", rows),
    NamedCall(("LigerGELUMulFunction",), "swiglu", rows),
    NamedCall(("BiasGeGLUFunction",), "swiglu", _gated),
    NamedCall(("LigerRopeFunction",), "rope", heads_first),
    NamedCall(("ScaledUpperTriangMaskedSoftmax",), "fused_causal_softmax", _square_scores),
    NamedCall(("aten::_softmax",), "softmax", scores),
    NamedCall(("ScaledMaskedSoftmax", "ScaledSoftmax"), "softmax", scores, variant="fused"),
    NamedCall(
        ("aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_flash_attention_for_cpu"),
        "flash_attention", _with_values, "", 4,
    ),
    NamedCall(("aten::_scaled_dot_product_cudnn_attention",), "flash_attention", _with_values, "cudnn", 6),
    NamedCall(
        ("aten::_scaled_dot_product_efficient_attention",), "flash_attention", _with_values, "memory-efficient", 6
    ),
    NamedCall(("flash_attn::_flash_attn_forward",), "flash_attention", _tokens_first, "flash-attn", 5),
    NamedCall(("FlashAttnFunc",), "flash_attention", _tokens_first, "flash-attn", 5),
    NamedCall(("FlashAttnQKVPackedFunc",), "flash_attention", _packed, "flash-attn", 3),
    NamedCall(("aten::_flash_attention_forward",), "flash_attention", _tokens_first, "", 8),
    NamedCall(("_Linear", "te_general_gemm"), "gemm", _weight_first, "transformer-engine"),
    NamedCall(("aten::embedding",), "embedding", _looked_up),
    NamedCall(("aten::cross_entropy_loss",), "cross_entropy", _matrix),
    NamedCall(("aten::baddbmm",), reason="a product that scales and adds: the table has none"),
    NamedCall(
        ("_LayerNormLinear", "_LayerNormMLP"),
        reason="a norm and products in one call (TransformerEngine): the table has them apart",
    ),
    NamedCall(
        ("FusedRoPEFunc", "FusedRoPE"),
        reason="rotary embedding of queries or keys alone: the table has both together",
    ),
    NamedCall(
        ("FlashAttnVarlenFunc", "flash_attn::_flash_attn_varlen_forward"),
        reason="attention over packed documents: their lengths were not recorded",
    ),
    NamedCall(
        ("LigerFusedLinearCrossEntropyFunction",),
        reason="logits and loss in one call: the table has them apart",
    ),
    NamedCall(("LigerCrossEntropyFunction",), "cross_entropy", rows),
)  # fmt: skip
BY_NAME: Mapping[str, NamedCall] = {name: row for row in NAMED_CALLS for name in row.names}

# Names of the operators that torch.compile fused, in its order, without changes of layout and type.
_FUSED = (
    ("gelu", "gelu", _first_rows),
    ("mul_silu", "swiglu", _first_rows),
    ("native_layer_norm", "layer_norm", _first_rows),
    ("add_mean_mul_pow_rsqrt", "rms_norm", _first_rows),
    ("mean_mul_pow_rsqrt", "rms_norm", _first_rows),
    ("_fused_rms_norm", "rms_norm", _first_rows),
    ("_softmax", "softmax", _first_scores),
    ("add", "residual_add", _first_rows),
)
_COMPILED = re.compile(r"triton_[a-z]+_fused_(.+?)(?:_\d+)?")
_LAYOUT_ONLY = re.compile(
    r"(?:^|_)(?:_to_copy|_unsafe_view|view|clone|transpose|permute|expand|unsqueeze|convert_element_type|detach|t)(?=_|$)"
)
BY_FUSED: Mapping[str, NamedCall] = {
    fused: NamedCall((fused,), operator, reading, "inductor") for fused, operator, reading in _FUSED
}


def is_compiled(name: str) -> bool:
    """Whether torch.compile wrote the kernel that a call launches."""
    return name.startswith("triton_")


def named_call(name: str, dims: Shapes, concrete: Sequence[str]) -> Recognition:
    """Recognise a call whose name is in `BY_NAME`, or that `is_compiled`; the element type is left open."""
    row = _compiled(name) if is_compiled(name) else BY_NAME[name]
    if isinstance(row, Unrecognised):
        return row
    if row.reason:
        return Unrecognised(row.reason)
    if row.causal_at is not None and (len(concrete) <= row.causal_at or concrete[row.causal_at] != "True"):
        return NOT_CAUSAL
    vector = row.reading(dims)
    return OTHER_SHAPE if vector is None else RecognisedCall(row.operator, vector, variant=row.variant)


def _compiled(name: str) -> NamedCall | Unrecognised:
    found = _COMPILED.fullmatch(name)
    fused = _LAYOUT_ONLY.sub("", found[1]).lstrip("_") if found else ""
    row = next((row for known, row in BY_FUSED.items() if known.lstrip("_") == fused), None)
    return row or Unrecognised(
        f"a compiled kernel of several operators: {found[1][:80] if found else name[:80]}"
    )
