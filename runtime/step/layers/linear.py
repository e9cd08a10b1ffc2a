"""Linears: in which type their products run, and what adapters (LoRA) make of them."""

import math
from collections.abc import Mapping
from typing import Any

from kernelcast.runtime.operators import Direction
from kernelcast.runtime.operators.gemm import CAST_BYTES
from kernelcast.runtime.request.fields import LinearKind
from kernelcast.runtime.step.adapters import adapted_columns, is_adapted
from kernelcast.runtime.step.modules import FROZEN_BYTES, RECIPES
from kernelcast.runtime.step.op import Matrix, Number, Op, Ops, op
from kernelcast.runtime.step.sizes import Sizes

ADAPTER_SCALE = "adapter_scale"
"""Role of the multiplication of an adapter's output by its scale, alpha over the rank."""
TRANSPOSITION = "frozen_transposition"
"""Role of the copy that TransformerEngine makes of a frozen weight in 8 bit in every backward pass, where products read
one order alone (`is_non_tn_fp8_gemm_supported`); PyTorch's are taken to need it too."""
_FROZEN = (Direction.FORWARD, Direction.INPUT_GRADIENT)


def linear(
    s: Sizes,
    kind: LinearKind,
    role: str,
    *shape: Number,
    bias: Number = 0,
    columns: tuple[Number, ...] = (),
    gathers: Direction | None = None,
    keeps_input: bool = False,
    **others: Any,
) -> Ops:
    """The product of a linear [m, k, n], or of one per local expert [experts, m, k, n], with its adapters.

    A frozen weight has no gradient. An adapter projects the input to its rank and from there to the output, which
    it is added to; its products run in the training's type, and cut like the linear need no collective of their
    own. A weight in 4 bit is dequantised before either product that reads it. `bias` is the number of further
    parameters, `columns` as of `Matrix` (those with an adapter share one), `gathers` the pass whose input a cut
    sequence is gathered for, `others` fields of `Op`. `keeps_input`: it saves what it reads, as no other op does.
    """
    *groups, m, k, n = shape
    casts: Ops = ()
    operator = "grouped_gemm" if groups else "gemm"
    if s.is_cast(kind):
        operator += f"_{RECIPES[s.layout.fp8_recipe].product}"
        rows, module = math.prod(groups) * m, others.get("module", "")
        keeps_type = gathers is Direction.FORWARD and is_adapted(s.model, s.layout, kind, role)
        before = gathers if s.gathers_float8(kind) and not keeps_type else None
        casts = (
            _cast(s, f"{role}_input_cast", rows, k, Direction.FORWARD, before, module),
            _cast(s, f"{role}_gradient_cast", rows, n, Direction.BACKWARD, before, module),
        )
    weight = Matrix(kind, k, n, groups[0] if groups else 1, columns)
    own = {"needs": "input", "parameters": weight.entries + bias, "weight": weight, **others}
    if keeps_input:
        own["saves"] = s.input_bytes(kind, role) * m * k
    if s.modules.separates_linears and len(columns) > 1 and not s.is_frozen:
        return (*casts[:1], *_separate(s, role, operator, (m, k), columns, own), *casts[1:])
    product = op(role, operator, *shape, role=role, directions=_FROZEN if s.is_frozen else None, **own)
    transposes = s.is_frozen and s.layout.fp8_weights and not RECIPES[s.layout.fp8_recipe].scales_blocks
    if casts and transposes:
        moved = RECIPES[s.layout.fp8_recipe].entry_bytes / s.element_bytes
        casts = (*casts, _rewritten(f"{role}_transposition", weight, moved, TRANSPOSITION, product.module))
    if s.is_quantised:
        moved = (FROZEN_BYTES[s.layout.frozen_weights] + s.element_bytes) / (2 * s.element_bytes)
        casts = (_rewritten(f"{role}_dequantisation", weight, moved, "", product.module), *casts)
    adapted = adapted_columns(s.model, s.layout, kind, role, columns or (n,))
    if groups or not adapted:
        return (*casts[:1], product, *casts[1:])
    n, rank, module, drops = sum(adapted), s.layout.lora_rank, product.module, int(s.layout.lora_dropout > 0)
    dropped: dict[str, Any] = {"count": drops, "needs": "output" if drops else "", "module": module}
    saved = s.element_bytes * m * rank
    return (
        *casts[:1],
        product,
        *casts[1:],
        op(f"{role}_adapter_dropout", "dropout", m, k, **dropped),
        _adapter(f"{role}_adapter_down", "adapter_down", m, k, rank, module=module),
        _adapter(f"{role}_adapter_up", "adapter_up", m, rank, n, module=module, saves=saved),
        op(f"{role}_adapter_scale", "copy", m, n, role=ADAPTER_SCALE, module=module),
        op(f"{role}_adapter_add", "residual_add", 1, m, n, module=module),
    )


def _separate(
    s: Sizes,
    role: str,
    operator: str,
    input_shape: tuple[Number, Number],
    columns: tuple[Number, ...],
    own: Mapping[str, Any],
) -> Ops:
    """A product for each of some linears that read one input, and the sum of the gradients that they have for it.

    The sum is one kernel, which reads as many tensors and writes one: rows of residual additions that move as much.
    """
    m, k = input_shape
    rows = max(1, round(m * (len(columns) + 1) / 3)) if isinstance(m, int) else m
    weights = [own["weight"]._replace(n=n, columns=()) for n in columns]
    later = {name: own[name] for name in ("needs", "module") if name in own}
    summed: dict[str, Any] = {"directions": (Direction.BACKWARD,), "module": own.get("module", "")}
    return (
        *(
            op(role, operator, m, k, one.n, role=role, **{**(later if index else own), "weight": one})
            for index, one in enumerate(weights)
        ),
        op(f"{role}_gradient_sum", "residual_add", 1, rows, k, **summed),
    )


def _cast(
    s: Sizes,
    name: str,
    rows: Number,
    columns: Number,
    direction: Direction,
    before: Direction | None,
    module: str,
) -> Op:
    """The cast of what a linear reads, or of its output's gradient, with the copies that the recipe makes.

    In the pass that gathers what was cast (`before`) it is of a shard; with a scale per tensor what arrives is
    transposed.
    """
    recipe = RECIPES[s.layout.fp8_recipe]
    moved: Any = recipe.one_copy_bytes if s.is_frozen else recipe.cast_bytes
    if direction is before:
        of_shard, arrived = moved, 0.0
        if not (recipe.scales_blocks or s.is_frozen):
            of_shard, arrived = recipe.one_copy_bytes, 2 * recipe.entry_bytes
        moved += s.sequence_parallel * (of_shard / s.tp + arrived - moved)
    rows = cast_rows(rows, moved)
    return op(name, "float8_cast", rows, columns, directions=(direction,), module=module)


def _rewritten(name: str, weight: Matrix, moved: float, role: str, module: str) -> Op:
    """A frozen weight read and written in other types or orders: `moved` of what a copy moves; nothing is kept.

    In 4 bit it is dequantised in both passes; in 8 bit it is transposed for the input's gradient.
    """
    rows = weight.times * weight.k
    if isinstance(rows, int):
        rows = max(1, round(rows * moved))
    directions = (Direction.BACKWARD,) if role else None
    return op(name, "copy", rows, weight.n, role=role, directions=directions, module=module)


def cast_rows(rows: Number, moved_bytes: float) -> Number:
    """Rows of the cast that was measured which move as much as one of `moved_bytes` per entry."""
    return max(1, round(rows * moved_bytes / CAST_BYTES)) if isinstance(rows, int) else rows


def _adapter(name: str, role: str, m: Number, k: Number, n: Number, **others: Any) -> Op:
    return op(name, "gemm", m, k, n, role=role, is_adapter=True, needs="input", parameters=k * n, **others)


def plain_linear(s: Sizes, role: str, *shape: Number, parameters: Number, **others: Any) -> Op:
    """A product [m, k, n] in the training's type, whose weight has no adapter."""
    own: dict[str, Any] = {"role": role, "directions": _FROZEN if s.is_frozen else None, "needs": "input"}
    return op(role, "gemm", *shape, parameters=parameters, **own, **others)


def bias(
    s: Sizes, name: str, rows: Number, columns: Number, *, has: bool, parameters: Number, **others: Any
) -> Op:
    """The bias of a linear, where it `has` one; a frozen one has no gradient."""
    own: dict[str, Any] = {"count": int(has), "directions": (Direction.FORWARD,) if s.is_frozen else None}
    return op(name, "bias_add", rows, columns, parameters=has * parameters, **own, **others)


def dropout(s: Sizes, name: str, **others: Any) -> Op:
    """Dropout of hidden states; it keeps its mask."""
    mask = s.mask_bytes * s.local_tokens * s.hidden
    needs = "output" if s.drops else ""
    return op(name, "dropout", s.local_tokens, s.hidden, count=s.drops, saves=mask, needs=needs, **others)
