"""What layers and ends of the model hold on one device: told once for all rows whose devices hold the same sizes.

Thousands of layouts have a few dozen sizes: stages, schedules and replicas do not change what a layer holds.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.expert_load import fullest_in_memory
from kernelcast.runtime.step.kinds import kinds_of
from kernelcast.runtime.step.layers.attention import attention_gradient_bytes
from kernelcast.runtime.step.layers.attention_core import buffer_bytes
from kernelcast.runtime.step.layers.embedding import embedding, vocabulary_matrix
from kernelcast.runtime.step.layers.loss import CROSS_ENTROPY, FURTHER, LOGITS, logit_entries, loss
from kernelcast.runtime.step.layers.transformer_layer import (
    ATTENTION_RESIDUAL,
    INPUT,
    MLP_NORM,
    transformer_layer,
)
from kernelcast.runtime.step.op import Number, Ops, saved_bytes
from kernelcast.runtime.step.parameters import PartParameters, held_parameters
from kernelcast.runtime.step.recomputation import PER_OP, saved_by_operator, with_parts
from kernelcast.runtime.step.sizes import Sizes


class LayerContents(NamedTuple):
    """A transformer layer: bytes for one micro-batch, entries for weights, each float64 [rows] or a number.

    - `block_input`, and the other `kept` activations; selective checkpointing drops `dropped` of attention and of the
      MLP's half, or by operator of both; `mlp` is all that this half keeps; `late` is kept for late weight gradients;
    - `freed`: what the forward pass of the MLP's half does not keep with selective and with full checkpointing;
    - gradients in use: of attention, at the MLP's projection down and at its activation;
    - `buffers` whatever the micro-batch;
    - `parameters`, of them in `adapters`; entries of weight `matrices`, of one expert's alone, and of
      all those `cast` to 8 bit.
    """

    block_input: Number
    kept: Number
    dropped: tuple[Number, Number]
    mlp: Number
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

    @classmethod
    def of(cls, s: Sizes, ops: Ops) -> Self:
        """Folds over the ops of a layer; selective checkpointing drops the layout's `recompute_modules`."""
        input_op, *others = ops
        assert input_op.name == INPUT
        # The MLP's half begins with its norm, or the sum that this reads.
        names = [one.name for one in others]
        middle = min(names.index(ATTENTION_RESIDUAL), names.index(MLP_NORM))
        halves = others[:middle], others[middle:]
        modules = with_parts(s.layout.recompute_modules)
        of_attention, of_mlp = (saved_bytes(one for one in half if one.module in modules) for half in halves)
        saves, freed = saved_bytes(halves[1]), of_mlp
        # The sum before it is scattered; async tensor parallelism has it, and what is gathered, in symmetric memory.
        output = s.element_bytes * s.tokens * s.hidden
        is_outside = s.modules.keeps_gathered and s.layout.tensor_overlap == "products"
        of_full = saves + (-output if is_outside else output)
        if PER_OP in s.layout.recompute_modules:
            listed = list(saved_by_operator(s, others))
            freed = saves - _total(listed[middle:])
            of_attention, of_mlp = 0 * saves, saved_bytes(others) - _total(listed)
        held = held_parameters(s, ops)
        return cls(
            block_input=input_op.saves,
            kept=saved_bytes(others),
            dropped=(of_attention, of_mlp),
            mlp=saves,
            freed=(freed, of_full),
            late=_total(one.late for one in others),
            attention_gradient=attention_gradient_bytes(s),
            at_projection=_total(one.gradients for one in others if one.weight is not None),
            at_activation=_total(one.gradients for one in others if one.weight is None),
            buffers=buffer_bytes(s),
            parameters=held.frozen + held.frozen_experts if s.is_frozen else held.total,
            adapters=held.dense if s.is_frozen else 0,
            matrices=1.0 * _total(one.weight.k * one.weight.n for one in others if one.weight is not None),
            cast=_cast_entries(s, ops),
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
    def of(cls, s: Sizes) -> Self:
        """Folds over the ops of the last end; layers of further predictions are counted with the others."""
        ops = loss(s)
        by_name = {one.name: one for one in ops}
        logits, at_loss = by_name[LOGITS], by_name[CROSS_ENTROPY]
        of_loss = {prefix + one.name for one in (logits, at_loss) for prefix in ("", FURTHER)}
        return cls(
            kept=saved_bytes(one for one in ops if not one.in_layer and one.name not in of_loss),
            logits=logits.saves,
            late=s.element_bytes * logit_entries(s),
            log_probabilities=at_loss.saves,
            gradients=(at_loss.gradients, logits.gradients),
            matrix=vocabulary_matrix(s),
            cast=_cast_entries(s, ops),
        )


class Contents(NamedTuple):
    """The parts of all stages: a layer of each kind, both ends, and their parameters.

    `embedding` are bytes kept by the first end; `tokens` counts tokens of a micro-batch; `gathered` are the bytes of
    its activations where sequence parallelism gathers them.
    """

    sizes: Sizes
    layers: tuple[LayerContents, ...]
    loss: LossContents
    embedding: Number
    parameters: PartParameters
    tokens: Number
    gathered: Number

    @classmethod
    def of(cls, model: ModelConfig, layout: Parallelism, element_bytes: int, *, is_cpu: bool) -> "Contents":
        """Contents of the devices of layouts, whose chosen fields are float64 [rows]."""
        s = Sizes(
            model=model,
            layout=layout,
            element_bytes=element_bytes,
            is_cpu=is_cpu,
            of_fullest=fullest_in_memory(layout, model.experts) if model.experts else 1.0,
        )
        kinds = [s.of_kind(kind) for kind in kinds_of(model).distinct]
        return cls(
            sizes=s,
            layers=tuple(LayerContents.of(one, transformer_layer(one)) for one in kinds),
            loss=LossContents.of(s),
            embedding=saved_bytes(embedding(s)),
            parameters=PartParameters.of(s),
            tokens=s.tokens,
            gathered=s.sequence_parallel * s.element_bytes * s.tokens * s.hidden,
        )

    def at(self, rows: NDArray[np.intp]) -> "Contents":
        """Contents at `rows`."""
        found: Contents = _at(self, rows)
        return found


def _cast_entries(s: Sizes, ops: Ops) -> Number:
    return _total(one.weight.entries for one in ops if one.weight is not None and s.is_cast(one.weight.kind))


def _total(values: Iterable[Number]) -> Number:
    total: Number = 0
    for value in values:
        total = total + value
    return total


def _at(value: Any, rows: NDArray[np.intp]) -> Any:
    """The same with every array at `rows`."""
    if isinstance(value, np.ndarray):
        return value[rows]
    if not isinstance(value, tuple):
        return value
    parts = [_at(part, rows) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
