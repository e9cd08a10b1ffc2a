"""Calls of libraries that are operators of the table by their name: rows of data, with how their inputs are read.

Names are those that the profiler writes: of an `autograd.Function` its class, of a custom operator its schema, of a
kernel that torch.compile wrote what it fused. A backward pass needs no row: autograd says which call it belongs to.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from kernelcast.collector.ingest.points import OTHER_SHAPE, Found, Point, Shapes, Unclear

Reading = Callable[[Shapes], tuple[int, ...] | None]
"""The workload vector from the shapes of the inputs; None where they are other ones."""
NOT_CAUSAL = Unclear("attention that is not causal, or does not say (Concrete Inputs)")


@dataclass(frozen=True, slots=True)
class NamedCall:
    """Which operator calls of these names are; `causal_at` is where among the inputs attention says that it is causal.

    `reason`: they are none, and why.
    """

    names: tuple[str, ...]
    operator: str
    reading: Reading
    variant: str = ""
    causal_at: int | None = None
    reason: str = ""


def rows(dims: Shapes, place: int = 0, halves: int = 1) -> tuple[int, ...] | None:
    """[b, l, d] of the input at `place`; rows of a matrix count as tokens of one sample."""
    shape = dims[place] if len(dims) > place else ()
    if len(shape) not in (2, 3) or shape[-1] % halves:
        return None
    *tokens, width = shape
    return (*(tokens if len(tokens) == 2 else (1, *tokens)), width // halves)


def _gated(dims: Shapes) -> tuple[int, ...] | None:
    """Gate and up in one input, side by side."""
    return rows(dims, halves=2)


def _first_rows(dims: Shapes) -> tuple[int, ...] | None:
    """The first input of two or three dimensions: a compiled kernel's inputs have an order of its own."""
    return next((rows((shape,)) for shape in dims if len(shape) in (2, 3)), None)


def _first_scores(dims: Shapes) -> tuple[int, ...] | None:
    return next((scores((shape,)) for shape in dims if len(shape) in (3, 4)), None)


def scores(dims: Shapes) -> tuple[int, ...] | None:
    """[b, heads, queries, keys]; heads of all samples together count as those of one."""
    shape = dims[0] if dims else ()
    return shape if len(shape) == 4 else (1, *shape) if len(shape) == 3 else None


def _square_scores(dims: Shapes) -> tuple[int, ...] | None:
    """[b · heads, queries, keys]."""
    found = scores(dims)
    return None if found is None else (found[0] * found[1], *found[2:])


def _attention(b: int, tokens: int, heads: int, kv_heads: int, head_size: int) -> tuple[int, ...] | None:
    return (b, tokens, heads, kv_heads, head_size) if kv_heads and heads % kv_heads == 0 else None


def _heads_first(dims: Shapes) -> tuple[int, ...] | None:
    """Queries, keys and values, each [b, heads, tokens, head size]."""
    if len(dims) < 2 or len(dims[0]) != 4 or len(dims[1]) != 4:
        return None
    b, heads, tokens, size = dims[0]
    return (
        _attention(b, tokens, heads, dims[1][1], size) if dims[1] == (b, dims[1][1], tokens, size) else None
    )


def _with_values(dims: Shapes) -> tuple[int, ...] | None:
    """The same, and values like the keys."""
    return _heads_first(dims) if dims[1:2] == dims[2:3] else None


def _tokens_first(dims: Shapes) -> tuple[int, ...] | None:
    """Queries and keys, each [b, tokens, heads, head size]."""
    if len(dims) < 2 or len(dims[0]) != 4 or len(dims[1]) != 4:
        return None
    b, tokens, heads, size = dims[0]
    return (
        _attention(b, tokens, heads, dims[1][2], size) if dims[1] == (b, tokens, dims[1][2], size) else None
    )


def _packed(dims: Shapes) -> tuple[int, ...] | None:
    """Queries, keys and values in one [b, tokens, 3, heads, head size]."""
    if not dims or len(dims[0]) != 5 or dims[0][2] != 3:
        return None
    b, tokens, _, heads, size = dims[0]
    return b, tokens, heads, heads, size


def _weight_first(dims: Shapes) -> tuple[int, ...] | None:
    """A weight [n, k] and an input [..., k], as TransformerEngine's products have them."""
    if len(dims) < 2 or len(dims[0]) != 2 or len(dims[1]) < 2 or dims[0][1] != dims[1][-1]:
        return None
    return prod(dims[1][:-1]), dims[0][1], dims[0][0]


def _looked_up(dims: Shapes) -> tuple[int, ...] | None:
    """A table [rows, width], and indices of any shape."""
    return (prod(dims[1]), *dims[0]) if len(dims) > 1 and len(dims[0]) == 2 and dims[1] else None


def _matrix(dims: Shapes) -> tuple[int, ...] | None:
    """[l, d], tokens of one sample."""
    return rows(dims) if len(dims[0]) == 2 else None


def _nothing(dims: Shapes) -> tuple[int, ...] | None:
    return None


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
    NamedCall(("LigerRopeFunction",), "rope", _heads_first),
    NamedCall(
        ("ScaledUpperTriangMaskedSoftmax",), "fused_causal_softmax", _square_scores
    ),
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
    NamedCall(("aten::baddbmm",), "", _nothing, reason="a product that scales and adds: the table has none"),
    NamedCall(
        ("_LayerNormLinear", "_LayerNormMLP"), "", _nothing,
        reason="a norm and products in one call (TransformerEngine): the table has them apart",
    ),
    NamedCall(
        ("FusedRoPEFunc", "FusedRoPE"), "", _nothing,
        reason="rotary embedding of queries or keys alone: the table has both together",
    ),
    NamedCall(
        ("FlashAttnVarlenFunc", "flash_attn::_flash_attn_varlen_forward"), "", _nothing,
        reason="attention over packed documents: their lengths were not recorded",
    ),
    NamedCall(
        ("LigerFusedLinearCrossEntropyFunction",), "", _nothing,
        reason="logits and loss in one call: the table has them apart",
    ),
    NamedCall(
        ("LigerCrossEntropyFunction",), "cross_entropy", rows
    ),
)  # fmt: skip
BY_NAME: Mapping[str, NamedCall] = {name: row for row in NAMED_CALLS for name in row.names}

# What torch.compile fused, in its order of names, without what only changes layouts and types.
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
    fused: NamedCall((), operator, reading, "inductor") for fused, operator, reading in _FUSED
}


def is_compiled(name: str) -> bool:
    """Whether torch.compile wrote the kernel that a call launches."""
    return name.startswith("triton_")


def named_call(name: str, dims: Shapes, concrete: Sequence[str]) -> Found:
    """What a call is whose name is in `BY_NAME`, or that `is_compiled`; its element type is left open."""
    row = _compiled(name) if is_compiled(name) else BY_NAME[name]
    if isinstance(row, Unclear):
        return row
    if row.reason:
        return Unclear(row.reason)
    if row.causal_at is not None and (len(concrete) <= row.causal_at or concrete[row.causal_at] != "True"):
        return NOT_CAUSAL
    vector = row.reading(dims)
    return OTHER_SHAPE if vector is None else Point(row.operator, "", vector, "", row.variant)


def _compiled(name: str) -> NamedCall | Unclear:
    found = _COMPILED.fullmatch(name)
    fused = _LAYOUT_ONLY.sub("", found[1]).lstrip("_") if found else ""
    row = next((row for known, row in BY_FUSED.items() if known.lstrip("_") == fused), None)
    return row or Unclear(f"a compiled kernel of several operators: {found[1][:80] if found else name[:80]}")
