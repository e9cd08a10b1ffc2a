"""A mixture of experts in the place of an MLP: shared experts, router, dispatch, the experts of a device, combination.

Every device routes its own tokens (with tensor parallelism, its part of the sequence). They are sent to the devices
that hold their experts, whose products run as one grouped one, and sent back (Megatron-core's all-to-all dispatcher,
or DeepEP and HybridEP, which send a token once to a node).
"""

from typing import Any

import numpy as np

from kernelcast.runtime.operators import Direction
from kernelcast.runtime.step.layers.linear import linear, plain_linear
from kernelcast.runtime.step.layers.mlp import (
    activated_bytes,
    activation_operator,
    gate_bytes,
    has_bias,
    weight_gradient_bytes,
)
from kernelcast.runtime.step.op import OTHER_MICRO_BATCH, Number, Op, Ops, flag, op
from kernelcast.runtime.step.sizes import Sizes

_SCORE_BYTES = 4
"""Scores of experts are in fp32."""
_PROBABILITY_ENTRIES = 2
"""Entries of 16 bits of a row's probability, in fp32: it is sent along, as the experts' activation multiplies by it
(Megatron-core from 0.13 on)."""
_CLAMPED_PASSES = 7
"""An activation that clamps, adds to the gate and multiplies by probabilities in fp32 moves 53 times its width where
torch runs each of these alone (forward 17, backward 36), 8 times in one kernel (Megatron-core's `glu`)."""
_BIAS_PASSES, _BIAS_GRADIENT_PASSES = 7, 20
"""Biases of the experts' results, by expert and times probabilities in fp32, then put together and cast: forward 14
times the width, one kernel 2; backward 20, one kernel 1: casts to fp32 and back 6, the parts of experts together 2, the
gradients of biases and of probabilities, products in fp32 that are summed, 6 each (Megatron-core's `_apply_bias`)."""
_FUSED = frozenset(("experts_activation", "experts_down_input_cast", "experts_gate_up_gradient_cast"))
"""Ops that a product of the experts in MXFP8 does at its end, and the gradient's at the end of the next one's
(TransformerEngine's fused grouped MLP, which Megatron-Bridge has with graphs of whole passes; not with biases)."""
_FORWARD = (Direction.FORWARD,)
PADDING = "padding"
SHARED_UP, SHARED_DOWN = "shared_gate_up", "shared_down"
ACTIVATION_INPUT, ACTIVATION = "experts_activation_input", "experts_activation"


def experts(s: Sizes) -> Ops:
    """Shared experts, which every token goes to, then the routed ones of one device, then the sum of both."""
    add = op("add_shared", "residual_add", s.micro_batch, s.local_length, s.hidden)
    has_shared = s.model.shared_expert_size > 0
    routed = _routed(s)
    is_graph = s.layout.cuda_graphs == "full" and s.layout.fp8_recipe == "mxfp8"
    if is_graph and s.is_gated and s.is_cast("experts") and not has_bias(s):
        routed = tuple(one._replace(call=None) if one.name in _FUSED else one for one in routed)
    parts = (*_shared(s), *routed, add) if has_shared else routed
    return tuple(one if one.module else one._replace(module="moe") for one in parts)


def _routed(s: Sizes) -> Ops:
    """Router, exchange, experts, exchange, combination. Parameters: router d·E, E more with biases or sigmoid scores;
    an expert (branches + 1)·d·f, with biases branches·f + d more, times E / (ep · expert_tp). LatentMoE: 2·d·r more,
    experts r for d.
    """
    model, size = s.model, s.routed_size
    # Rows of the fullest device's experts; devices that share an expert have each other's rows too.
    all_rows = s.imbalance * s.sent_rows * s.expert_tp
    rows = _whole(all_rows)
    dispatcher = s.layout.expert_dispatcher
    # What comes in is in the order of the senders; DeepEP's and HybridEP's is permuted once, in a kernel of its own
    # (HybridEP's `permute_launcher` behind its dispatch and `unpermute_launcher` before its combination, which are
    # launched with them and overlap what they overlap).
    sorts = flag(s.ep > 1) * flag(s.experts > 1) * int(dispatcher == "all_to_all")
    # Rows of every expert are padded for 8 and 4 bit by a copy before the products, and back after them
    # (TransformerEngine's `Fp8Padding` in Megatron-core's `TEGroupedMLP`); graphs of whole passes have padded routing
    # maps, and experts that are padded to a capacity have aligned rows.
    pads = flag(s.is_cast("experts") and s.layout.cuda_graphs != "full" and not s.layout.expert_padding)
    under = OTHER_MICRO_BATCH if s.overlaps_experts and dispatcher == "hybridep" else None
    routed = (s.local_tokens, model.experts_per_token, size)
    router_biases = model.experts if model.router == "sigmoid" or has_bias(s) else 0
    results = s.modules.kept_results * s.element_bytes * s.imbalance * s.sent_rows * size
    scores = (s.local_tokens, model.experts)
    routed_scores: dict[str, Any] = {
        "saves": 2 * _SCORE_BYTES * s.local_tokens * model.experts,
        "needs": "output",
    }
    read: dict[str, Any] = {"late": 2 * s.element_bytes * s.local_tokens * s.hidden}
    read["parameters"] = model.experts * s.hidden + router_biases
    padding: dict[str, Any] = {"role": PADDING, "count": pads}
    return (
        plain_linear(s, "router", s.local_tokens, s.hidden, model.experts, **read),
        op("routing", "router", *scores, **routed_scores),
        *(_latent_down(s) if model.expert_latent_size else ()),
        op("permute", "permute", *routed, overlaps=under),
        *_exchanges(s, "dispatch", s.layout.fp8_dispatch, with_probabilities=True),
        _cut(s, "gather_rows", "all_gather", _sent_entries(s)),
        op("sort", "copy", rows, size, count=sorts),
        op("pad_rows", "copy", rows, size, **padding),
        *_grouped_mlp(s, all_rows),
        op("unpad_rows", "copy", rows, size, **padding),
        op("sort_back", "copy", rows, size, count=sorts),
        _cut(s, "scatter_rows", "reduce_scatter", _sent_entries(s) * s.expert_tp),
        *_exchanges(s, "combine", False, with_probabilities=False),
        op("unpermute", "unpermute", *routed, overlaps=under, saves=results, needs="output"),
        *(_latent_up(s) if model.expert_latent_size else ()),
    )


def _grouped_mlp(s: Sizes, all_rows: Number) -> Ops:
    """The products of a device's experts and the activation between them, of `all_rows` tokens."""
    element, width, branches, size = s.element_bytes, s.expert_width, s.branches, s.routed_size
    rows = _whole(all_rows)
    of_each = _whole(rows / s.experts)
    # Biases, and with them the clamped activation of gpt-oss, have kernels of their own, unless a graph of whole
    # passes takes fused ones.
    is_apart = has_bias(s) and s.layout.cuda_graphs != "full"
    up = f"experts_{'gate_' if s.is_gated else ''}up"
    biases = (s.experts * branches * width, s.experts * size) if has_bias(s) else (0, 0)
    read = s.input_bytes("experts", up)
    of_rows, of_width = element * all_rows * size, element * all_rows * width
    late = of_rows + branches * of_width
    of_up: dict[str, Any] = {"saves": read * all_rows * size, "late": late, "bias": biases[0]}
    of_down: dict[str, Any] = {"late": of_width + of_rows, "bias": biases[1]}
    of_down["gradients"] = of_rows + of_width + weight_gradient_bytes(s, s.experts * width * size)
    kept: dict[str, Any] = {"saves": (gate_bytes(s) + _before_probabilities(s)) * all_rows * width}
    kept |= {"gradients": late, "needs": "input", "module": "moe_act"}
    passes = _CLAMPED_PASSES if is_apart and s.is_gated else 1
    added: dict[str, Any] = {"count": _BIAS_PASSES * is_apart, "directions": _FORWARD}
    summed: dict[str, Any] = {"count": _BIAS_GRADIENT_PASSES * is_apart, "directions": (Direction.BACKWARD,)}
    return (
        *linear(s, "experts", up, s.experts, of_each, size, branches * width, is_expert=True, **of_up),
        op("experts_up_bias", "bias_add", rows, branches * width, count=int(is_apart)),
        # What its checkpoint keeps.
        Op(ACTIVATION_INPUT, saves=activated_bytes(s) * all_rows * width),
        op(ACTIVATION, activation_operator(s), 1, rows, width, count=passes, **kept),
        Op("experts_activated", saves=read * all_rows * width, module="moe_act", needs="input"),
        *linear(s, "experts", "experts_down", s.experts, of_each, width, size, is_expert=True, **of_down),
        op("experts_down_bias", "bias_add", rows, size, **added),
        op("experts_down_bias_gradients", "bias_add", rows, size, **summed),
    )


def _latent_down(s: Sizes) -> Ops:
    """Tokens projected to the size of routed experts' inputs, unsharded (Megatron-core's `fc1_latent_proj`)."""
    rows, size = s.local_tokens, s.routed_size
    kept, late = s.cast_bytes("mlp", "latent_down") * rows * s.hidden, s.element_bytes * rows * size
    return linear(s, "mlp", "latent_down", rows, s.hidden, size, saves=kept, late=late)


def _latent_up(s: Sizes) -> Ops:
    """The sum of a token's experts back to a hidden state (`fc2_latent_proj`)."""
    rows, size = s.local_tokens, s.routed_size
    late = s.element_bytes * rows * (size + s.hidden)
    return linear(s, "mlp", "latent_up", rows, size, s.hidden, keeps_input=True, late=late)


def _before_probabilities(s: Sizes) -> int:
    """Bytes per column saved for a separate multiplication by the router's probabilities, 0 where it is fused.

    Megatron-core fuses it into SwiGLU (`weighted_bias_swiglu_impl`) and squared ReLU (`weighted_squared_relu_impl`).
    """
    is_fused = s.is_gated or s.model.activation == "squared_relu"
    return 0 if is_fused or s.modules.kept_results else s.element_bytes


def _shared(s: Sizes) -> Ops:
    """The experts that every token goes to; the router keeps what they read."""
    width, rows, element = s.shared_expert_width, s.tokens, s.element_bytes
    up_width, shape = s.branches * width, (s.micro_batch, s.length, width)
    own_copy, late = s.cast_bytes("mlp", SHARED_UP) * s.local_tokens * s.hidden, element * rows * up_width
    kept = (activated_bytes(s) + gate_bytes(s)) * rows * width
    ops = (
        *linear(s, "mlp", SHARED_UP, rows, s.hidden, up_width, saves=own_copy, late=late),
        op("shared_activation", activation_operator(s), *shape, saves=kept, needs="input"),
        *linear(s, "mlp", SHARED_DOWN, rows, width, s.hidden, keeps_input=True, late=element * rows * width),
    )
    return tuple(one._replace(module="shared_experts") for one in ops)


def _exchanges(s: Sizes, name: str, in_float8: bool, *, with_probabilities: bool) -> Ops:
    """Rows to the devices of their experts with their probabilities, or back; gradients return the same way. DeepEP and
    HybridEP send a token once to every node, and there once to every device.
    """
    group = s.expert_groups[0]
    forwards = s.layout.expert_dispatcher != "all_to_all"
    if not forwards:
        probabilities = _whole(_PROBABILITY_ENTRIES * s.imbalance * s.sent_rows)
        whole = {name: (_sent_entries(s), group.nodes, group.gpus_per_node)}
        if with_probabilities:
            whole[f"{name}_probabilities"] = (probabilities, group.nodes, group.gpus_per_node)
    else:
        tokens = s.imbalance * s.local_tokens * s.routed_size
        whole = {name: (_whole(tokens * _reached(s, s.ep)), 1, group.gpus_per_node)}
        if group.nodes > 1:
            whole[f"{name}_between"] = (_whole(tokens * _reached(s, group.nodes)), group.nodes, 1)
    return tuple(
        op(
            own,
            "all_to_all",
            -(-entries // 2) if in_float8 and not own.endswith("probabilities") else entries,
            nodes,
            gpus,
            role="expert",
            # A token that is sent once to its node is forwarded only where the node has several devices.
            count=flag(s.ep > 1) * (flag(nodes * gpus > 1) if forwards else 1),
            collective="both",
            overlaps=OTHER_MICRO_BATCH if s.overlaps_experts else None,
        )
        for own, (entries, nodes, gpus) in whole.items()
    )


def _reached(s: Sizes, parts: Number) -> Number:
    """How many of the equal `parts` of all experts a token's experts lie in, in the mean over balanced routers."""
    experts, missed = s.model.experts, 1.0 + 0 * parts
    for drawn in range(s.model.experts_per_token):
        missed = missed * np.maximum(0.0, experts - experts / parts - drawn) / (experts - drawn)
    return parts * (1 - missed)


def _cut(s: Sizes, name: str, operator: str, entries: Number) -> Op:
    """Rows of experts that are cut are gathered, and their results summed."""
    group = s.expert_groups[1]
    shape = (entries, group.nodes, group.gpus_per_node)
    return op(name, operator, *shape, role="expert_tensor", count=flag(s.expert_tp > 1), collective="both")


def _sent_entries(s: Sizes) -> Number:
    return _whole(s.imbalance * s.sent_rows * s.routed_size)


def _whole(count: Number) -> Number:
    """A whole number of rows or entries, at least one."""
    return max(1, round(count)) if isinstance(count, int | float) else count
