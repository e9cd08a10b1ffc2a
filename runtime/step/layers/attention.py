"""Self-attention: QKV projection, rotary embedding, attention, output projection; or with low ranks (latent attention).

Latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) makes queries, and keys with values, from a normalized
low-rank vector; a part of a head is rotated. The projections to low ranks are whole on every device of a
tensor-parallel group, as in Megatron-core.
"""

from typing import Any

from kernelcast.runtime.operators import Direction
from kernelcast.runtime.step.layers.attention_core import attention_core, core_gradient_bytes
from kernelcast.runtime.step.layers.linear import bias, dropout, linear
from kernelcast.runtime.step.layers.norm import norm_operator
from kernelcast.runtime.step.layers.tensor_parallel import Mixer
from kernelcast.runtime.step.op import Number, Op, Ops, op
from kernelcast.runtime.step.sizes import Sizes

_ROTATIONS = 7
"""Times that torch's operators read and write the rotated part: forward to order it by halves (1), to negate and turn
them (1.5), to multiply by cosines and sines (2), to add (1.5) and to put it back (1); backward they are 8.5."""
OUTPUT = "attention_output"
_UP = "mla_up_proj"


def column_products(s: Sizes) -> tuple[str, ...]:
    """Its column-parallel products, which read the same input."""
    if not s.model.kv_rank:
        return ("qkv",)
    return ("query_up" if s.model.query_rank else "qkv", "kv_up")


def attention(s: Sizes) -> Ops:
    """Attention of one layer; column-parallel, then row-parallel. Parameters: (a + 2k)(d + β)/tp and d(a + β)/tp; β = 1
    with a bias, else 0; a = h · head size, k = h_kv · head size; a gate has the size of queries. Biases are divided by
    tp, as in Table III.
    """
    shape, late = (
        (s.tokens, s.attention_width, s.hidden),
        s.tokens * s.attention_width + s.local_tokens * s.hidden,
    )
    # The bias is added after the all-reduce.
    has_bias = s.model.biases in ("all", "attention") and not s.model.kv_rank
    kept: dict[str, Any] = {"keeps_input": True, "late": s.element_bytes * late}
    return (
        *(_latent_projections(s) if s.model.kv_rank else _projections(s)),
        *attention_core(s),
        *_output_gate(s),
        *linear(s, "attention", OUTPUT, *shape, gathers=Direction.BACKWARD, **kept),
        bias(s, "attention_output_bias", s.local_tokens, s.hidden, has=has_bias, parameters=s.hidden // s.tp),
        dropout(s, "attention_output_dropout"),
    )


def attention_gradient_bytes(s: Sizes) -> Number:
    """Gradients in use at the fullest moment of its backward pass."""
    return core_gradient_bytes(s, _head_width(s) if s.model.kv_rank else s.qkv_width)


def _projections(s: Sizes) -> Ops:
    model, rows = s.model, s.tokens
    gates = (s.query_width,) if model.attention_gate else ()
    width = s.qkv_width + sum(gates)
    columns = (s.query_width + sum(gates), s.kv_width, s.kv_width)
    late = s.element_bytes * (s.local_tokens * s.hidden + rows * width)
    # Of all heads: a bias is divided by tp as a whole.
    biases = ((1 + len(gates)) * model.attention_heads + 2 * model.kv_heads) * model.head_size // s.tp
    has_bias = model.biases in ("all", "attention", "qkv")
    shape = (s.micro_batch, s.length, s.heads, s.kv_heads, model.rotated_size)
    kept: dict[str, Any] = {"saves": s.element_bytes * rows * _core_input_width(s), "needs": "output"}
    heads = (("query", s.heads), ("key", s.kv_heads)) if model.qk_norm else ()
    rope = "rope" if s.eager == "none" else "eager_rope"
    return (
        *linear(
            s,
            "attention",
            "qkv",
            rows,
            s.hidden,
            width,
            columns=columns,
            gathers=Direction.FORWARD,
            late=late,
        ),
        bias(s, "qkv_bias", rows, width, has=has_bias, parameters=biases),
        op("qkv_split", "qkv_split", rows, width),
        *(_head_norm(s, name, count) for name, count in heads),
        op("rope", rope, *shape, count=int(s.rotates), **kept),
        *_sinks(s),
    )


def _output_gate(s: Sizes) -> Ops:
    """It moves what a gated activation moves, and keeps the gate and attention's output."""
    gated, kept = (s.micro_batch, s.length, s.attention_width), 2 * s.element_bytes
    gate = op("output_gate", "swiglu", *gated, saves=kept * s.tokens * s.attention_width, needs="input")
    return (gate,) if s.model.attention_gate else ()


def _head_norm(s: Sizes, name: str, heads: Number) -> Op:
    """The norm of every query or key head, whole on every device."""
    size = s.model.head_size
    return op(f"{name}_norm", norm_operator(s), s.micro_batch, s.length * heads, size, parameters=size)


def _sinks(s: Sizes) -> Ops:
    """A learned entry of each head's softmax."""
    return (Op("sinks", parameters=s.heads),) if s.model.attention_sinks else ()


def _core_input_width(s: Sizes) -> Number:
    """Entries per token of the tensors that attention reads: rotated queries and keys are their own; values, where a
    view, keep the whole QKV product.
    """
    repeats = s.model.attention != "flash" and s.model.kv_heads < s.model.attention_heads
    if s.modules.copies_attention_inputs:
        return 3 * s.attention_width if repeats else s.qkv_width
    if repeats:
        # Copies of keys and values; queries that were not rotated are a view of the QKV product.
        return 2 * s.attention_width + (s.attention_width if s.rotates else s.qkv_width)
    return s.qkv_width + (s.attention_width + s.kv_width if s.rotates else 0)


def _latent_projections(s: Sizes) -> Ops:
    """Parameters: d·r_q + r_q + r_q·h·s/tp (or d·h·s/tp), d(r + s_r) + r + r·h(s − s_r + s_v)/tp."""
    model, rows = s.model, s.tokens
    q_rank, kv_rank, element = model.query_rank, model.kv_rank, s.element_bytes
    down_width = kv_rank + model.rotated_size
    # Keys without the rotated part, and values.
    up_width = s.heads * (model.head_size - model.rotated_size + model.value_size)

    def projected(role: str, m: Number, k: Number, n: Number, late: Number, **others: Any) -> Ops:
        return linear(s, "attention", role, m, k, n, late=element * late, **others)

    queries = projected("qkv", rows, s.hidden, s.query_width, rows * s.query_width)
    if q_rank:
        late = rows * (q_rank + s.query_width)
        queries = (
            *projected("query_down", s.local_tokens, s.hidden, q_rank, rows * q_rank),
            *_rank_norm(s, "query_rank_norm", q_rank, before=q_rank),
            *projected("query_up", rows, q_rank, s.query_width, late, module=_UP),
        )
    late = s.local_tokens * s.hidden + rows * down_width
    kept: dict[str, Any] = {"saves": element * rows * _head_width(s), "needs": "output", "module": _UP}
    return (
        *queries,
        *projected("kv_down", s.local_tokens, s.hidden, down_width, late),
        *_rank_norm(s, "kv_rank_norm", kv_rank, before=down_width),
        *projected("kv_up", rows, kv_rank, up_width, rows * (kv_rank + up_width), module=_UP),
        op("heads", "copy", rows, _copied_width(s), **kept),
        *_sinks(s),
    )


def _rank_norm(s: Sizes, name: str, rank: int, *, before: int) -> Ops:
    """The norm of a low rank, which a linear alone reads; of its input `before` entries per token are kept."""
    rows = s.tokens if s.modules.keeps_gathered else s.local_tokens
    kept: dict[str, Any] = {"saves": s.input_bytes("attention", name) * rows * rank, "needs": "output"}
    kept["module"] = _UP if s.modules.fuses_norms else ""
    shape = (s.micro_batch, s.local_length, rank)
    return (
        Op(f"{name}_input", saves=s.element_bytes * s.local_tokens * before),
        op(name, norm_operator(s), *shape, parameters=rank, **kept),
    )


def _head_width(s: Sizes) -> Number:
    """Entries per token of queries, keys and values with all their heads."""
    return 2 * s.query_width + s.attention_width


def _copied_width(s: Sizes) -> Number:
    """Entries per token that torch's own operators read and write once: heads put together of rotated and plain parts,
    values taken out; backward for both products. Without Megatron-core's experimental kernel the rotated part is copied
    and multiplied seven times.
    """
    rotated = s.heads * s.model.rotated_size
    return _head_width(s) - rotated // 2 + _ROTATIONS * int(s.rotates) * rotated


ATTENTION = Mixer(attention, column_products, OUTPUT, attention_gradient_bytes)
