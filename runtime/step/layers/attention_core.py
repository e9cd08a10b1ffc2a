"""What lies between queries and attention output: scores and softmax, fused or not, and context parallelism's exchange.

With context parallelism every device has an early and a late part of each sequence, of l/(2·cp) tokens, so that the
causal mask leaves all devices the same work ("zig-zag", arXiv 2407.21783, section 3.3.2).
"""

from typing import Any

import numpy as np

from kernelcast.runtime.operators import Direction
from kernelcast.runtime.step.layers.norm import STATISTIC_BYTES
from kernelcast.runtime.step.op import Number, Op, Ops, Overlap, flag, op
from kernelcast.runtime.step.sizes import Sizes

_RING_BLOCKS = "attention_of_others"


def attention_core(s: Sizes) -> Ops:
    """Attention of one micro-batch on one device with its exchange over cp: a ring has a causal block of its own
    tokens, of others' all keys by half the queries; all_to_all whole sequences and a cp-th of the heads; all_gather a
    cp-th of the queries and all keys, whose gradients are summed and scattered.
    """
    if s.model.attention != "flash":
        return _unfused(s)
    whole = s.model.sequence_length
    if s.context_exchange == "all_to_all":
        # Tensors are put into the order of devices, or of tokens, before and after an exchange.
        width, output = 2 * (s.qkv_width + s.attention_width), s.tokens * s.attention_width
        # Attention's output by heads; the output projection keeps another tensor, by tokens.
        by_heads = s.element_bytes * output * flag(s.cp > 1)
        reorder: Ops = () if _is_alone(s) else (op("reorder", "copy", s.tokens, width, module="core_attn"),)
        return (
            exchange(s, "exchange_qkv", "all_to_all", s.tokens * s.qkv_width, "both"),
            *_fused(s, whole, whole, s.cp, saves=by_heads),
            *reorder,
            exchange(s, "exchange_output", "all_to_all", output, "both"),
        )
    if s.context_exchange == "all_gather":
        return (
            exchange(s, "gather_keys_and_values", "all_gather", _kv_entries(s), "both"),
            *_fused(s, s.length, whole, 1),
            exchange(s, "sum_key_and_value_gradients", "reduce_scatter", s.cp * _kv_entries(s), "backward"),
        )
    return (*_fused(s, s.length, s.length, 1), *_ring(s))


def core_gradient_bytes(s: Sizes, width: Number) -> Number:
    """Gradients in use: the output's, and `width` entries per token or twice the scores if they are materialised."""
    own = width if s.model.attention == "flash" else 2 * s.heads * s.length
    return s.element_bytes * s.tokens * (own + s.attention_width)


def buffer_bytes(s: Sizes) -> int:
    """Rotary tables in fp32, and the unfused softmax's mask."""
    model = s.model
    tables = 2 * 4 * model.sequence_length * model.head_size if model.rotary else 0
    return tables + (model.sequence_length**2 if model.attention == "unfused" else 0)


def _unfused(s: Sizes) -> Ops:
    """Products and softmax of their own: the weights are kept, and with dropout the dropped weights and their mask."""
    batch, length, size = s.micro_batch * s.heads, s.length, s.model.head_size
    scores = s.tokens * s.heads * s.length

    def core(name: str, operator: str, *shape: Number, **others: Any) -> Op:
        return op(name, operator, *shape, module="core_attn", **others)

    def product(name: str, *shape: Number, saves: Number = 0) -> Op:
        return core(name, "batched_gemm", batch, *shape, role=name, needs="input", saves=saves)

    heads = (s.micro_batch, s.heads, length, length)
    kept: dict[str, Any] = {"saves": s.element_bytes * scores, "needs": "output"}
    dropped: dict[str, Any] = {"saves": scores * (s.element_bytes + s.mask_bytes) * s.drops, "count": s.drops}
    softmax: Ops = (
        core("mask", "causal_mask_fill", *heads),
        core("softmax", "softmax", *heads, **kept),
    )
    if s.model.attention == "fused_softmax":
        softmax = (core("softmax", "fused_causal_softmax", batch, length, length, **kept),)
    return (
        product("attention_scores", length, size, length),
        *softmax,
        core(
            "attention_dropout",
            "dropout",
            s.tokens,
            s.heads * length,
            needs="output" if s.drops else "",
            **dropped,
        ),
        product("attention_values", length, length, size, saves=_own_output_bytes(s)),
    )


def _own_output_bytes(s: Sizes) -> Number:
    """Bytes of attention's output where the output projection keeps a cast or dropped copy of it, or nothing."""
    return int(s.attention_keeps_output) * s.element_bytes * s.tokens * s.attention_width


def _fused(s: Sizes, queries: Number, keys: Number, head_parts: Number, *, saves: Number = 0) -> Ops:
    """One kernel, which keeps its log-sum-exp in fp32, and its output (`saves`, by heads) where no other op keeps it; a
    dropout is part of it.

    In 8 bit it is another operator, where a query sees all keys before it.
    """
    seen, heads = _seen(s), _heads(s, head_parts)
    kept: dict[str, Any] = {
        "saves": s.tokens * STATISTIC_BYTES * s.heads + np.maximum(saves, _own_output_bytes(s)),
        "needs": "output",
        "module": "core_attn",
    }
    if seen == 1 and (s.context_exchange != "all_gather" or _is_alone(s)):
        shape = (s.micro_batch, keys, *heads)
        return (op("attention", "flash_attention" + "_float8" * s.layout.fp8_attention, *shape, **kept),)
    visible = _at_least_one(seen * (keys + 1) / 2)
    return (op("attention", "attention_block", s.micro_batch, queries, keys, visible, *heads, **kept),)


def _ring(s: Sizes) -> Ops:
    """Blocks of the other devices' keys, and the messages under them: keys and values, backward their gradients too."""
    if _is_alone(s):
        return ()
    half, count, nodes = s.length // 2, s.cp - 1, min(2, s.context_group.nodes)
    visible = _at_least_one(_seen(s) * half)
    block = (s.micro_batch, s.length, half, visible, *_heads(s, 1))

    def send(name: str, of_pass: str, entries: Number, direction: Direction) -> Op:
        under = Overlap((_RING_BLOCKS,), direction)
        group: dict[str, Any] = {"role": "context", "count": count, "collective": of_pass, "overlaps": under}
        return op(name, "point_to_point", entries, nodes, 3 - nodes, **group)

    return (
        send("send_keys_and_values", "forward", _kv_entries(s), Direction.FORWARD),
        op(_RING_BLOCKS, "attention_block", *block, count=count, module="core_attn"),
        send("send_gradients", "backward", 2 * _kv_entries(s), Direction.BACKWARD),
    )


def visible_keys(s: Sizes) -> float:
    """Keys that a query sees in the mean: through the causal mask, the layer's window, and among its document."""
    length, window = s.model.sequence_length, s.kind.window
    if not window:
        causal = (length + 1) / 2
    elif s.model.window_chunks:
        chunks, rest = divmod(length, window)
        causal = (chunks * window * (window + 1) + rest * (rest + 1)) / (2 * length)
    else:
        causal = window - window * (window - 1) / (2 * length)
    return s.model.visible_share * causal


def _is_alone(s: Sizes) -> bool:
    """Whether no other device has a part of the sequence."""
    return isinstance(s.cp, int) and s.cp == 1


def _seen(s: Sizes) -> float:
    """Keys that a query sees in the mean, as a share of those through the causal mask alone."""
    return 2 * visible_keys(s) / (s.model.sequence_length + 1)


def _at_least_one(count: Number) -> Number:
    return max(1, round(count)) if isinstance(count, int | float) else count


def _heads(s: Sizes, parts: Number) -> tuple[Number, Number, int]:
    mean_size = (s.model.head_size + s.model.value_size) // 2
    return s.heads // parts, s.kv_heads // parts, mean_size


def exchange(s: Sizes, name: str, operator: str, entries: Number, of_pass: str) -> Op:
    """A collective of the context-parallel group."""
    layout = s.context_group.nodes, s.context_group.gpus_per_node
    return op(name, operator, entries, *layout, role="context", count=flag(s.cp > 1), collective=of_pass)


def _kv_entries(s: Sizes) -> Number:
    return 2 * s.tokens * s.kv_width
