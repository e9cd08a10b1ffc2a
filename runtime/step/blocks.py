"""What one micro-batch calls inside one layer and at the model's ends (docs/method.md, A step).

Pure functions of hashable arguments, remembered: the thousands of layouts of a search share few distinct
pieces. A piece is a tuple of calls on one device.
"""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Self

from kernelcast.runtime.operators import Direction, Shape
from kernelcast.runtime.request.layout import Cluster, Parallelism, Recompute
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.calls import Calls, Component, OperatorCall, call
from kernelcast.runtime.step.groups import Group, tensor_group
from kernelcast.runtime.step.parameters import padded_vocabulary

_F, _B, _1 = Direction.FORWARD, Direction.BACKWARD, Direction.ONCE
# A search of tens of thousands of layouts asks for some dozens of each kind; a server keeps as many as it is let.
_REMEMBERED = 1 << 11
_LOSS_SYNCS = 3

End = Literal["first", "last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What the pieces of one micro-batch depend on, beside the model: how a layer is cut into devices.

    `group` is the tensor-parallel group. With `sequence_parallel`, norms and residuals hold l/tp tokens.
    `left_out` are supplementary operators that are not called, as the bundle lacks them.
    """

    tp: int
    micro_batch: int
    sequence_parallel: bool
    group: Group
    left_out: frozenset[str] = frozenset()

    @classmethod
    def of(cls, parallelism: Parallelism, cluster: Cluster, left_out: frozenset[str] = frozenset()) -> Self:
        """The cut of a layout; a tensor-parallel degree of 1 has no sequence to cut."""
        return cls(
            tp=parallelism.tp,
            micro_batch=parallelism.micro_batch,
            sequence_parallel=parallelism.sequence_parallel and parallelism.tp > 1,
            group=tensor_group(parallelism, cluster),
            left_out=left_out,
        )


@lru_cache(maxsize=_REMEMBERED)
def layer_forward(model: ModelConfig, cut: Cut) -> Calls:
    """Forward calls of one layer, its collectives last."""
    return _layer(model, cut, _F, Component.LAYER_FORWARD)


@lru_cache(maxsize=_REMEMBERED)
def layer_backward(model: ModelConfig, cut: Cut, recompute: Recompute) -> Calls:
    """Backward calls of one layer; what recomputation runs again stands after them, as forward calls."""
    part = Component.LAYER_BACKWARD
    calls = _layer(model, cut, _B, part)
    if "qkv_split" not in cut.left_out:
        calls = (call("qkv_split", _B, piece_shape(model, cut), 1, part), *calls)
    if recompute == "full":
        calls += _layer(model, cut, _F, part)
    elif recompute == "selective":
        shape = piece_shape(model, cut)
        calls += tuple(call(name, _F, shape, 1, part) for name in _attention(model, cut))
    return calls


@lru_cache(maxsize=_REMEMBERED)
def end_forward(model: ModelConfig, cut: Cut, end: End) -> Calls:
    """Forward calls of an end: "first" is the embedding, "last" norm, logits and loss.

    The embedding's partial rows are summed across the tensor-parallel group. With sequence parallelism that
    is a reduce-scatter, and what the logits read is gathered. The loss combines maxima, sums of exponentials and
    the targets' logits of the vocabulary's shards, an entry per token each.
    """
    part, shape = Component.ENDS_FORWARD, piece_shape(model, cut)
    if end == "first":
        sync = "mp_reduce_scatter" if cut.sequence_parallel else "mp_all_reduce"
        return (
            call("embedding", _F, shape, 1, part),
            *_embedding_mask(model, cut, _F, part),
            *_sync(sync, model, cut, 1, part),
        )
    gather = _sync("mp_all_gather", model, cut, 1, part) if cut.sequence_parallel else ()
    return (
        call(model.norm, _F, _along_sequence(model, cut), 1, part),
        *gather,
        call("logits_linear", _F, shape, 1, part),
        call("cross_entropy", _F, shape, 1, part),
        *_sync("mp_all_reduce", model, cut, _LOSS_SYNCS, part, width=1),
    )


@lru_cache(maxsize=_REMEMBERED)
def end_backward(model: ModelConfig, cut: Cut, end: End) -> Calls:
    """Backward calls of an end; with sequence parallelism the collectives of `end_forward` turned round.

    Without it the gradients of what the logits read are summed across the tensor-parallel group, as those of every
    other column-parallel linear. (The paper's composition has no collective here.)
    """
    part, shape = Component.ENDS_BACKWARD, piece_shape(model, cut)
    if end == "first":
        gather = _sync("mp_all_gather", model, cut, 1, part) if cut.sequence_parallel else ()
        return (*gather, *_embedding_mask(model, cut, _B, part), call("embedding", _B, shape, 1, part))
    scatter = _sync("mp_reduce_scatter" if cut.sequence_parallel else "mp_all_reduce", model, cut, 1, part)
    return (
        call(model.norm, _B, _along_sequence(model, cut), 1, part),
        call("logits_linear", _B, shape, 1, part),
        call("cross_entropy", _B, shape, 1, part),
        *scatter,
    )


@lru_cache(maxsize=_REMEMBERED)
def send(model: ModelConfig, cut: Cut, pair: Group, component: Component) -> Calls:
    """One transfer of a micro-batch's activations, or of their gradients, to a neighbouring stage."""
    return (call("pp_p2p", _1, _on(model, cut, pair), 1, component),)


@lru_cache(maxsize=_REMEMBERED)
def piece_shape(model: ModelConfig, cut: Cut) -> Shape:
    """Sizes of one micro-batch on one device; the vocabulary is the padded one."""
    return Shape(
        micro_batch=cut.micro_batch,
        sequence_length=model.sequence_length,
        hidden_size=model.hidden_size,
        attention_heads=model.attention_heads,
        explicit_head_size=model.head_size,
        kv_heads=model.kv_heads,
        mlp_size=model.mlp_size,
        vocabulary_size=padded_vocabulary(model.vocabulary_size, cut.tp),
        tensor_parallel=cut.tp,
    )


def _layer(model: ModelConfig, cut: Cut, direction: Direction, part: Component) -> Calls:
    shape, along = piece_shape(model, cut), _along_sequence(model, cut)
    calls: list[OperatorCall] = []
    for name, count in _operators(model, cut).items():
        cut_along_sequence = name in (model.norm, "residual_add")
        calls.append(call(name, direction, along if cut_along_sequence else shape, count, part))
    calls += _biases(model, cut, direction, part)
    syncs = model.forward_syncs if direction is _F else model.backward_syncs
    if cut.sequence_parallel:
        # Every all-reduce of a region becomes a gather where it begins and a reduce-scatter where it ends.
        calls += _sync("mp_all_gather", model, cut, syncs, part)
        calls += _sync("mp_reduce_scatter", model, cut, syncs, part)
    else:
        calls += _sync("mp_all_reduce", model, cut, syncs, part)
    return tuple(calls)


def _operators(model: ModelConfig, cut: Cut) -> dict[str, int]:
    """Operators of one layer with their number, in order of first appearance."""
    operators = {model.norm: 2, "qkv_linear": 1}
    if model.rotary:
        operators[_grouped("rope", model, cut)] = 1
    mlp = ("mlp_gate_up_linear", "swiglu") if model.activation == "swiglu" else ("mlp_up_linear", "gelu")
    operators |= dict.fromkeys((*_attention(model, cut), "attention_output_linear"), 1)
    operators["residual_add"] = 2
    operators |= dict.fromkeys((*mlp, "mlp_down_linear"), 1)
    return operators


def _attention(model: ModelConfig, cut: Cut) -> tuple[str, ...]:
    """What lies between queries and attention output."""
    return {
        "flash": (_grouped("flash_attention", model, cut),),
        "fused_softmax": ("attention_scores", "fused_causal_softmax", "attention_values"),
        "unfused": ("attention_scores", "causal_mask_fill", "softmax", "attention_values"),
    }[model.attention]


def _grouped(name: str, model: ModelConfig, cut: Cut) -> str:
    """The operator for fewer key-value heads than query heads, where the model has fewer and the bundle has it."""
    grouped = f"grouped_{name}"
    return grouped if model.kv_heads != model.attention_heads and grouped not in cut.left_out else name


def _biases(model: ModelConfig, cut: Cut, direction: Direction, part: Component) -> list[OperatorCall]:
    """Biases of a layer's linears, equal ones as one call; row-parallel linears' are added to what was summed."""
    if "bias_add" in cut.left_out or model.biases == "none":
        return []
    shape, along = piece_shape(model, cut), _along_sequence(model, cut)
    tokens, summed_tokens = shape.sequence_length, along.sequence_length
    sizes: list[tuple[int, int]] = []
    if model.biases in ("all", "attention", "qkv"):
        sizes.append((tokens, shape.qkv_width // cut.tp))
    if model.biases in ("all", "attention"):
        sizes.append((summed_tokens, model.hidden_size))
    if model.biases in ("all", "mlp"):
        up = 2 if model.activation == "swiglu" else 1
        sizes += [(tokens, up * shape.local_mlp_size), (summed_tokens, model.hidden_size)]
    return [
        call(
            "bias_add",
            direction,
            Shape(micro_batch=cut.micro_batch, sequence_length=length, mlp_size=width),
            count,
            part,
        )
        for (length, width), count in Counter(sizes).items()
    ]


def _embedding_mask(model: ModelConfig, cut: Cut, direction: Direction, part: Component) -> Calls:
    if cut.tp == 1 or "embedding_mask" in cut.left_out:
        return ()
    return (call("embedding_mask", direction, piece_shape(model, cut), 1, part),)


def _along_sequence(model: ModelConfig, cut: Cut) -> Shape:
    tokens = model.sequence_length // cut.tp if cut.sequence_parallel else model.sequence_length
    return Shape(micro_batch=cut.micro_batch, sequence_length=tokens, hidden_size=model.hidden_size)


def _sync(
    name: str, model: ModelConfig, cut: Cut, count: int, part: Component, *, width: int | None = None
) -> Calls:
    """Collectives over `width` entries per token, the hidden size unless given."""
    if cut.tp == 1 or count == 0:
        return ()
    return (call(name, _1, _on(model, cut, cut.group, width), count, part),)


def _on(model: ModelConfig, cut: Cut, group: Group, width: int | None = None) -> Shape:
    return Shape(
        micro_batch=cut.micro_batch,
        sequence_length=model.sequence_length,
        hidden_size=width or model.hidden_size,
        tensor_parallel=cut.tp,
        nodes=group.nodes,
        gpus_per_node=group.gpus_per_node,
    )
