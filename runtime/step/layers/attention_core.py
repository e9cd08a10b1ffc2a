"""Fused attention between queries and output: its mask, and the part of it that context parallelism gives a device.

With context parallelism every device has an early and a late part of each sequence, of l/(2·cp) tokens, so that the
causal mask leaves all devices the same work ("zig-zag", arXiv 2407.21783, section 3.3.2).
"""

from kernelcast.runtime.operators import Direction
from kernelcast.runtime.step.calls import Beside, Call, Calls, Component, backward, call, forward
from kernelcast.runtime.step.layers.sizes import Number, Sizes


def visible_keys(sizes: Sizes) -> float:
    """Keys that a query sees in the mean: through the causal mask, the layer's window, and among its document."""
    length, window = sizes.model.sequence_length, sizes.kind.window
    if not window:
        causal = (length + 1) / 2
    elif sizes.model.window_chunks:
        chunks, rest = divmod(length, window)
        causal = (chunks * window * (window + 1) + rest * (rest + 1)) / (2 * length)
    else:
        causal = window - window * (window - 1) / (2 * length)
    return sizes.model.visible_share * causal


def fused_core(sizes: Sizes) -> Calls:
    """Fused attention of one micro-batch on one device.

    - A ring has a block for every device's keys: its own tokens are a causal block; of the others' it sees the early
      part with all queries, or all keys with the late queries (the former is taken for all of them).
    - Heads exchanged for tokens (all_to_all): whole sequences, and a cp-th of the heads.
    - Gathered keys (all_gather): a cp-th of the queries, all keys.
    """
    length, parts = sizes.model.sequence_length, sizes.cp
    if sizes.context_exchange == "all_to_all":
        # Before and after an exchange, tensors are put into the order of devices, or of tokens.
        width = 2 * (sizes.qkv_width + sizes.attention_width)
        copies = (call("copy", sizes.tokens, width),) if parts > 1 else ()
        return (_attention(sizes, length, length, parts), *copies)
    if sizes.context_exchange == "all_gather":
        return (_attention(sizes, sizes.length, length, 1),)
    return (_attention(sizes, sizes.length, sizes.length, 1), *_others(sizes))


def _seen(sizes: Sizes) -> float:
    """Keys that a query sees in the mean, as a share of those through the causal mask alone."""
    return 2 * visible_keys(sizes) / (sizes.model.sequence_length + 1)


def _others(sizes: Sizes) -> Calls:
    """A ring's blocks of other devices' keys."""
    half = sizes.length // 2
    visible = _at_least_one(_seen(sizes) * half)
    block = (sizes.micro_batch, sizes.length, half, visible, *_heads(sizes, 1))
    return (call("attention_block", *block, count=sizes.cp - 1),) if sizes.cp > 1 else ()


def _attention(sizes: Sizes, queries: Number, keys: Number, head_parts: Number) -> Call:
    heads = _heads(sizes, head_parts)
    seen = _seen(sizes)
    if seen == 1 and queries == keys:
        return call("flash_attention", sizes.micro_batch, keys, *heads)
    visible = _at_least_one(seen * (keys + 1) / 2)
    return call("attention_block", sizes.micro_batch, queries, keys, visible, *heads)


def _at_least_one(count: float) -> int:
    return max(1, round(count))


def _heads(sizes: Sizes, parts: Number) -> tuple[Number, Number, Number]:
    model = sizes.model
    mean_size = (model.head_size + model.value_size) // 2
    return sizes.heads // parts, sizes.kv_heads // parts, mean_size


def exchanged(sizes: Sizes) -> Calls:
    """Collectives of context parallelism in a forward pass that nothing runs beside."""
    layout = sizes.context_group.nodes, sizes.context_group.gpus_per_node
    if sizes.context_exchange == "all_to_all" and sizes.cp > 1:
        widths = (sizes.qkv_width, sizes.attention_width)
        return tuple(call("all_to_all", sizes.tokens * width, *layout, role="context") for width in widths)
    if sizes.context_exchange == "all_gather" and sizes.cp > 1:
        return (call("all_gather", _key_value_entries(sizes), *layout, role="context"),)
    return ()


def exchanged_back(sizes: Sizes) -> Calls:
    """Those of a backward pass: gathered keys are gathered again, and their gradients summed."""
    calls = exchanged(sizes)
    if sizes.context_exchange == "all_gather" and sizes.cp > 1:
        layout = sizes.context_group.nodes, sizes.context_group.gpus_per_node
        calls += (call("reduce_scatter", sizes.cp * _key_value_entries(sizes), *layout, role="context"),)
    return calls


def ring(sizes: Sizes, direction: Direction) -> tuple[Beside, ...]:
    """A ring's messages beside the blocks of keys that are there: keys and values, backward also their gradients.

    Without a ring, or without context parallelism, both are empty.
    """
    if sizes.context_exchange != "ring":
        return ()
    is_forward = direction is Direction.FORWARD
    component = Component.BESIDE_FORWARD if is_forward else Component.BESIDE_BACKWARD
    blocks = _others(sizes)
    if not blocks:
        return (Beside(component=component),)
    nodes = min(2, sizes.context_group.nodes)
    entries = (1 if is_forward else 2) * _key_value_entries(sizes)
    sent = call("point_to_point", entries, nodes, 3 - nodes, role="context", count=sizes.cp - 1)
    within = forward(blocks) if is_forward else backward(blocks)
    return (Beside(forward([sent]), within, component),)


def _key_value_entries(sizes: Sizes) -> Number:
    return 2 * sizes.tokens * sizes.kv_width
