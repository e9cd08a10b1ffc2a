"""What layers and ends of the model hold on one device: told once for all rows whose devices hold the same sizes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.request.fields import OffloadModule
from kernelcast.runtime.request.layout import Cluster, Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.chunks import kinds_of
from kernelcast.runtime.step.expert_load import fullest_in_memory
from kernelcast.runtime.step.layers.attention import OUTPUT as ATTENTION_OUTPUT
from kernelcast.runtime.step.layers.attention_core import buffer_bytes
from kernelcast.runtime.step.layers.experts import ACTIVATION, ACTIVATION_INPUT
from kernelcast.runtime.step.layers.loss import (
    CROSS_ENTROPY,
    FURTHER,
    LOGITS,
    embedding,
    logit_entries,
    loss,
    vocabulary_matrix,
)
from kernelcast.runtime.step.layers.transformer_layer import (
    ATTENTION_RESIDUAL,
    INPUT,
    INPUT_NORM,
    MLP_NORM,
    mixer_gradient_bytes,
    transformer_layer,
)
from kernelcast.runtime.step.op import Number, Op, Ops, saved_bytes
from kernelcast.runtime.step.parameters import PartParameters, held_parameters
from kernelcast.runtime.step.recomputation import PER_OP, saved_by_operator, with_parts
from kernelcast.runtime.step.sizes import Sizes

_OFFLOADED: Mapping[OffloadModule, frozenset[str]] = {
    "attn_norm": frozenset({INPUT}),
    "qkv_linear": frozenset(
        {INPUT_NORM, "qkv", "query_rank_norm_input", "query_rank_norm", "kv_rank_norm_input", "kv_rank_norm"}
    ),
    "core_attn": frozenset({"rope", "heads", "softmax", "attention_dropout", "attention"}),
    "attn_proj": frozenset({ATTENTION_OUTPUT}),
    "mlp_norm": frozenset({ATTENTION_RESIDUAL}),
    "expert_fc1": frozenset({"experts_up", "experts_gate_up"}),
    "moe_act": frozenset({ACTIVATION_INPUT, ACTIVATION}),
}
"""Ops that save the inputs of Megatron-core's modules (`fine_grained_activation_offload.py`)."""


class Kept(NamedTuple):
    """Bytes of a layer and micro-batch: input, others, of these what selective checkpointing drops, float64 [rows]."""

    block_input: Number
    others: Number
    dropped: Number


class LayerContents(NamedTuple):
    """A transformer layer: bytes for one micro-batch, entries for weights, each float64 [rows] or a number.

    - `block_input`, and the other `kept` activations; selective checkpointing drops `dropped` of attention and of the
      MLP's half, or by operator of both; `mlp` is all that this half keeps; `late` is kept for late weight gradients;
    - `offloaded`: what the modules keep that are offloaded;
    - `freed`: what the forward pass of the MLP's half does not keep with selective and with full checkpointing;
    - gradients in use: of attention, at the MLP's projection down and at its activation;
    - `buffers` whatever the micro-batch;
    - `parameters`, of them in `adapters`; entries of weight `matrices`, of one expert's alone, of all those `cast` to
      8 bit or held in 4, and of the largest one that is `dequantised`.
    """

    block_input: Number
    kept: Number
    dropped: tuple[Number, Number]
    mlp: Number
    offloaded: Kept
    freed: tuple[Number, Number]
    late: Number
    attention_gradient: Number
    at_projection: Number
    at_activation: Number
    buffers: Number
    parameters: Number
    adapters: Number
    matrices: Number
    cast: Number
    dequantised: Number

    @property
    def all_kept(self) -> Kept:
        return Kept(self.block_input, self.kept, sum(self.dropped))

    @classmethod
    def of(cls, s: Sizes, ops: Ops, only: str = "") -> Self:
        """Folds over the ops of a layer, or over those named `only`; selective checkpointing drops the layout's
        `recompute_modules`.
        """
        input_op, *others = ops
        assert input_op.name == INPUT
        # The MLP's half, if any, begins with its norm, or the sum that this reads.
        names = [one.name for one in others]
        starts = (ATTENTION_RESIDUAL, MLP_NORM) if s.kind.has_mlp else ()
        middle = min((names.index(name) for name in starts if name in names), default=len(names))
        halves, mine = (slice(middle), slice(middle, None)), _named(ops, only)

        def total(values: Iterable[Number], half: slice = slice(None)) -> Number:
            pairs = [*zip(values, names, strict=True)][half]
            return _total(value for value, name in pairs if only in ("", name))

        saves, dropped = [one.saves for one in others], _dropped(s, others)
        of_attention, of_mlp = (total(dropped, half) for half in halves)
        freed, kept_by_mlp = of_mlp, total(saves, halves[1])
        if PER_OP in s.layout.recompute_modules:
            of_attention, of_mlp = 0, of_attention + of_mlp
        # The sum before it is scattered; async tensor parallelism has it, and what is gathered, in symmetric memory.
        output = s.element_bytes * s.tokens * s.hidden
        is_outside = s.modules.keeps_gathered and s.layout.tensor_overlap == "products"
        held = held_parameters(s, mine)
        return cls(
            block_input=input_op.saves if only in ("", INPUT) else 0,
            kept=total(saves),
            dropped=(of_attention, of_mlp),
            mlp=kept_by_mlp,
            offloaded=_offloaded(s, input_op, others, dropped, only),
            freed=(freed, kept_by_mlp + (-output if is_outside else output)),
            late=total(one.late for one in others),
            attention_gradient=mixer_gradient_bytes(s),
            at_projection=_total(one.gradients for one in others if one.weight is not None),
            at_activation=_total(one.gradients for one in others if one.weight is None),
            buffers=buffer_bytes(s),
            parameters=held.frozen + held.frozen_experts if s.is_frozen else held.total,
            adapters=held.dense if s.is_frozen else 0,
            matrices=1.0 * _total(one.weight.k * one.weight.n for one in others if one.weight is not None),
            cast=_cast_entries(s, mine),
            dequantised=_largest_weight(others) if s.is_quantised else 0,
        )


class LossContents(NamedTuple):
    """The last end: bytes for one micro-batch, and entries of its matrix, each float64 [rows] or a number.

    `late` are gradients of logits that wait for late weight gradients; `gradients` those at the loss, and after it.
    """

    kept: Number
    logits: Number
    late: Number
    log_probabilities: Number
    gradients: tuple[Number, Number]
    matrix: Number
    cast: Number

    @classmethod
    def of(cls, s: Sizes, only: str = "") -> Self:
        """Folds over the ops after the last layer; layers of multi-token prediction are counted as layers."""
        ops = loss(s)
        has_logits, has_loss = (int(only in ("", name)) for name in (LOGITS, CROSS_ENTROPY))
        by_name = {one.name: one for one in ops}
        logits, at_loss = by_name[LOGITS], by_name[CROSS_ENTROPY]
        of_loss = {prefix + one.name for one in (logits, at_loss) for prefix in ("", FURTHER)}
        return cls(
            kept=saved_bytes(
                one for one in _named(ops, only) if not one.in_layer and one.name not in of_loss
            ),
            logits=has_logits * logits.saves,
            late=has_logits * s.element_bytes * logit_entries(s),
            log_probabilities=has_loss * at_loss.saves,
            gradients=(at_loss.gradients, logits.gradients),
            matrix=vocabulary_matrix(s),
            cast=_cast_entries(s, _named(ops, only)),
        )


class Contents(NamedTuple):
    """The parts of all stages, with their parameters: a layer of each kind and both ends. `embedding` are bytes kept by
    the first end; `gathered` bytes of activations of `tokens` where sequence parallelism gathers them.
    """

    sizes: Sizes
    layers: tuple[LayerContents, ...]
    loss: LossContents
    embedding: Number
    parameters: PartParameters
    tokens: Number
    gathered: Number

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        layout: Parallelism,
        element_bytes: int,
        *,
        is_cpu: bool,
        only: str = "",
        cluster: Cluster | None = None,
    ) -> "Contents":
        """Contents of the devices of a layout, or of layouts whose chosen fields are float64 [rows]; what is held and
        kept by ops of one name alone where `only` is given.
        """
        s = Sizes(
            model=model,
            layout=layout,
            kind=kinds_of(model).most_sizes,
            cluster=cluster,
            element_bytes=element_bytes,
            is_cpu=is_cpu,
            of_fullest=fullest_in_memory(layout, model.experts) if model.experts else 1.0,
        )
        kinds = [s.of_kind(kind) for kind in kinds_of(model).distinct]
        ops = [transformer_layer(one) for one in kinds]
        return cls(
            sizes=s,
            layers=tuple(LayerContents.of(*of_kind, only) for of_kind in zip(kinds, ops, strict=True)),
            loss=LossContents.of(s, only),
            embedding=saved_bytes(_named(embedding(s), only)),
            parameters=PartParameters.of(s, only, ops),
            tokens=s.tokens,
            gathered=s.sequence_parallel * s.element_bytes * s.tokens * s.hidden,
        )

    def at(self, rows: NDArray[np.intp]) -> "Contents":
        """Contents at `rows`."""
        found: Contents = _at(self, rows)
        return found


def op_names(model: ModelConfig, layout: Parallelism) -> tuple[str, ...]:
    """Names of the ops of a model, in its order."""
    s = Sizes(model=model, layout=layout)
    layers = (transformer_layer(s.of_kind(kind)) for kind in kinds_of(model).distinct)
    return tuple(dict.fromkeys(one.name for ops in (embedding(s), *layers, loss(s)) for one in ops))


def _named(ops: Ops, only: str) -> Ops:
    return tuple(one for one in ops if one.name == only) if only else ops


def _offloaded(s: Sizes, input_op: Op, others: Sequence[Op], dropped: Sequence[Number], only: str) -> Kept:
    """What the modules that are offloaded keep."""
    modules = s.layout.offload_modules
    listed = {op_name for name in modules if name != "all" for op_name in _OFFLOADED[name]}
    # A norm fused into a linear is no op of its own; the QKV linear saves the norm's input.
    apart = {one.name for one in others if one.module == "layernorm"}
    if INPUT_NORM not in apart:
        listed = listed | {INPUT} if "qkv_linear" in modules else listed - {INPUT}
    if MLP_NORM not in apart:
        listed = listed - {ATTENTION_RESIDUAL}

    def goes(one: Op) -> bool:
        return only in ("", one.name) and ("all" in modules or one.name in listed)

    return Kept(
        block_input=input_op.saves if goes(input_op) else 0,
        others=_total(one.saves for one in others if goes(one)),
        dropped=_total(less for less, one in zip(dropped, others, strict=True) if goes(one)),
    )


def _dropped(s: Sizes, ops: Sequence[Op]) -> list[Number]:
    """Bytes that selective checkpointing drops of each op; negative where checkpointing per operator saves more."""
    if PER_OP in s.layout.recompute_modules:
        return [one.saves - kept for one, kept in zip(ops, saved_by_operator(s, ops), strict=True)]
    modules = with_parts(s.layout.recompute_modules)
    return [one.saves if one.module in modules else 0 for one in ops]


def _cast_entries(s: Sizes, ops: Ops) -> Number:
    return _total(
        one.weight.entries for one in ops if one.weight is not None and s.is_narrow(one.weight.kind)
    )


def _largest_weight(ops: Iterable[Op]) -> Number:
    largest: Number = 0
    for one in ops:
        if one.weight is not None:
            largest = np.maximum(largest, one.weight.entries)
    return largest


def _total(values: Iterable[Number]) -> Number:
    total: Number = 0
    for value in values:
        total = total + value
    return total


def _at(value: Any, rows: NDArray[np.intp]) -> Any:
    """The same with every array at `rows`; whole numbers as floats, so that no product of sizes overflows."""
    if isinstance(value, np.ndarray):
        return value[rows]
    if type(value) is int:
        return float(value)
    if not isinstance(value, tuple):
        return value
    parts = [_at(part, rows) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
