"""Self-attention: QKV projection, rotary embedding, attention, output projection; or with low ranks (latent attention).

Latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) makes queries, and keys with values, from a normalized
low-rank vector; a part of a head is rotated. The projections to low ranks are whole on every device of a
tensor-parallel group, as in Megatron-core.
"""

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


def has_qkv_bias(s: Sizes) -> bool:
    """Whether the QKV projection has a bias."""
    return s.model.biases in ("all", "attention", "qkv")


def has_output_bias(s: Sizes) -> bool:
    """Whether the output projection has a bias; it is added to the summed product."""
    return s.model.biases in ("all", "attention")


def column_products(s: Sizes) -> tuple[str, ...]:
    """Its column-parallel products, which read the same input."""
    if not s.model.kv_rank:
        return ("qkv",)
    return ("query_up" if s.model.query_rank else "qkv", "kv_up")


def attention(s: Sizes) -> Ops:
    """Attention of one layer from its normalized input to its output; column-parallel, then row-parallel.

    Parameters: (a + 2k)(d + β)/tp for queries, keys and values, d(a + β)/tp for the output; β = 1 with a bias, else 0;
    a = h · head size, k = h_kv · head size; a gate has the parameters of queries. Biases are divided by tp as
    Table III prints them.
    """
    late = s.element_bytes * (s.tokens * s.attention_width + s.local_tokens * s.hidden)
    return (
        *(_latent_projections(s) if s.model.kv_rank else _projections(s)),
        *attention_core(s),
        *_output_gate(s),
        *linear(
            s,
            "attention",
            OUTPUT,
            s.tokens,
            s.attention_width,
            s.hidden,
            gathers=Direction.BACKWARD,
            saves=s.input_bytes("attention", OUTPUT) * s.tokens * s.attention_width,
            late=late,
        ),
        bias(
            s,
            "attention_output_bias",
            s.local_tokens,
            s.hidden,
            has=has_output_bias(s) and not s.model.kv_rank,
            parameters=s.hidden // s.tp,
        ),
        dropout(s, "attention_output_dropout"),
    )


def attention_gradient_bytes(s: Sizes) -> Number:
    """Gradients in use at the fullest moment of its backward pass."""
    return core_gradient_bytes(s, _head_width(s) if s.model.kv_rank else s.qkv_width)


def _projections(s: Sizes) -> Ops:
    model, rows = s.model, s.tokens
    gates = (s.query_width,) if model.attention_gate else ()
    width = s.qkv_width + sum(gates)
    heads = (1 + len(gates)) * model.attention_heads + 2 * model.kv_heads
    late = s.element_bytes * (s.local_tokens * s.hidden + rows * width)
    return (
        *linear(
            s,
            "attention",
            "qkv",
            rows,
            s.hidden,
            width,
            columns=(s.query_width + sum(gates), s.kv_width, s.kv_width),
            gathers=Direction.FORWARD,
            late=late,
        ),
        bias(s, "qkv_bias", rows, width, has=has_qkv_bias(s), parameters=heads * model.head_size // s.tp),
        op("qkv_split", "qkv_split", rows, width),
        *(
            _head_norm(s, name, heads)
            for name, heads in (("query", s.heads), ("key", s.kv_heads))
            if model.qk_norm
        ),
        op(
            "rope",
            "rope" if s.eager == "none" else "eager_rope",
            s.micro_batch,
            s.length,
            s.heads,
            s.kv_heads,
            model.rotated_size,
            count=int(s.rotates),
            saves=s.element_bytes * rows * _core_input_width(s),
            needs="output",
        ),
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
    """Entries per token of the tensors that attention reads.

    Rotated queries and keys are tensors of their own; the values, where they are a view, keep the whole QKV product
    too.
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
    queries = linear(
        s, "attention", "qkv", rows, s.hidden, s.query_width, late=element * rows * s.query_width
    )
    if q_rank:
        queries = (
            *linear(
                s, "attention", "query_down", s.local_tokens, s.hidden, q_rank, late=element * rows * q_rank
            ),
            *_rank_norm(s, "query_rank_norm", q_rank, before=q_rank),
            *linear(
                s,
                "attention",
                "query_up",
                rows,
                q_rank,
                s.query_width,
                late=element * rows * (q_rank + s.query_width),
                module="mla_up_proj",
            ),
        )
    return (
        *queries,
        *linear(
            s,
            "attention",
            "kv_down",
            s.local_tokens,
            s.hidden,
            down_width,
            late=element * (s.local_tokens * s.hidden + rows * down_width),
        ),
        *_rank_norm(s, "kv_rank_norm", kv_rank, before=down_width),
        *linear(
            s,
            "attention",
            "kv_up",
            rows,
            kv_rank,
            up_width,
            late=element * rows * (kv_rank + up_width),
            module="mla_up_proj",
        ),
        op(
            "heads",
            "copy",
            rows,
            _copied_width(s),
            saves=element * rows * _head_width(s),
            needs="output",
            module="mla_up_proj",
        ),
        *_sinks(s),
    )


def _rank_norm(s: Sizes, name: str, rank: int, *, before: int) -> Ops:
    """The norm of a low rank, which a linear alone reads; of its input `before` entries per token are kept."""
    rows = s.tokens if s.modules.keeps_gathered else s.local_tokens
    return (
        Op(f"{name}_input", saves=s.element_bytes * s.local_tokens * before),
        op(
            name,
            norm_operator(s),
            s.micro_batch,
            s.local_length,
            rank,
            parameters=rank,
            saves=s.input_bytes("attention", name) * rows * rank,
            needs="output",
            module="mla_up_proj" if s.modules.fuses_norms else "",
        ),
    )


def _head_width(s: Sizes) -> Number:
    """Entries per token of queries, keys and values with all their heads."""
    return 2 * s.query_width + s.attention_width


def _copied_width(s: Sizes) -> Number:
    """Entries per token that are read and written once, by torch's own operators.

    Heads of queries and keys are put together from the part that is rotated and the part that is not, values taken
    out of the product; backward, gradients are put together for both products. The kernel that rotates all at once
    is an experiment of Megatron-core: without it the rotated part is copied and multiplied seven times.
    """
    rotated = s.heads * s.model.rotated_size
    return _head_width(s) - rotated // 2 + _ROTATIONS * int(s.rotates) * rotated


ATTENTION = Mixer(attention, column_products, OUTPUT, attention_gradient_bytes)
