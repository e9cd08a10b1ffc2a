"""Memory of the devices of every stage: the parts added up."""

from dataclasses import dataclass
from math import ceil

import numpy as np

from kernelcast.runtime.memory.in_flight import Load, loads
from kernelcast.runtime.memory.layer import Kept, Widths, kept_by_layer, mask_bytes
from kernelcast.runtime.memory.rows import FULL, LOADED, NONE, SELECTIVE, Floats, Rows
from kernelcast.runtime.memory.states import Precision, model_states, precision_of
from kernelcast.runtime.memory.working import LOG_PROBABILITY_BYTES, Ends, working_bytes
from kernelcast.runtime.request.layout import Parallelism, Recompute
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.parameters import layer_parameters, padded_vocabulary, stage_parameters
from kernelcast.runtime.step.partition import layers_of_chunks

RECOMPUTE_CODES: dict[Recompute, int] = {"none": NONE, "selective": SELECTIVE, "full": FULL}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes on one device of a pipeline stage, at its fullest moment.

    - `weights_bytes`, `gradients_bytes`, `optimizer_bytes`: the model states under ZeRO;
    - `activations_bytes`: what autograd keeps for the micro-batches in flight;
    - `logits_bytes`: logits and fp32 log-probabilities, on the last stage;
    - `working_bytes`: gradients on their way, recomputed activations, whole weights and gradients of the
      blocks that ZeRO works on, tables.
    """

    stage: int
    layers: int
    parameters: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    logits_bytes: int
    working_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        states = self.weights_bytes + self.gradients_bytes + self.optimizer_bytes
        return states + self.activations_bytes + self.logits_bytes + self.working_bytes


@dataclass(frozen=True, slots=True)
class Bytes:
    """The parts of `StageMemory` as arrays, float64 [rows], and the parameters on a device."""

    parameters: Floats
    weights: Floats
    gradients: Floats
    optimizer: Floats
    activations: Floats
    logits: Floats
    working: Floats

    @property
    def total(self) -> Floats:
        """All bytes."""
        states = self.weights + self.gradients + self.optimizer
        return states + self.activations + self.logits + self.working


def stage_memory(
    model: ModelConfig,
    parallelism: Parallelism,
    *,
    dtype: str = "float16",
    dropout: bool = False,
    device_kind: str = "cuda",
) -> tuple[StageMemory, ...]:
    """Memory of one device of every stage, in order.

    `dtype` is float16 or bfloat16 (mixed precision with fp32 master weights) or float32. `dropout` says
    whether the model drops out after embedding, attention, softmax and MLP. `device_kind` is that of the
    compute fingerprint: on a "cpu" torch keeps more of some operators (see `kept_by_layer`).

    Raises:
        UsageError: the model cannot be laid out so, or an unknown `dtype`.
    """
    parallelism.check(model)
    counts = layers_of_chunks(model.layers, parallelism)
    stages = loads(
        parallelism.schedule,
        parallelism.pp,
        parallelism.virtual_stages,
        parallelism.micro_batches,
        counts,
    )
    found = memory_of(
        model,
        _rows(parallelism, stages),
        precision=precision_of(dtype),
        dropout=dropout,
        device_kind=device_kind,
    )
    return tuple(
        StageMemory(
            stage=index,
            layers=load.layers,
            parameters=int(found.parameters[index]),
            weights_bytes=ceil(found.weights[index]),
            gradients_bytes=ceil(found.gradients[index]),
            optimizer_bytes=ceil(found.optimizer[index]),
            activations_bytes=ceil(found.activations[index]),
            logits_bytes=ceil(found.logits[index]),
            working_bytes=ceil(found.working[index]),
        )
        for index, load in enumerate(stages)
    )


def memory_of(
    model: ModelConfig, rows: Rows, *, precision: Precision, dropout: bool = False, device_kind: str = "cuda"
) -> Bytes:
    """Memory of one device of every row.

    Activations are what the layers in flight keep (`kept_by_layer`), on the last chunk the final norm's
    input and output too, with dropout the embedding's mask on the first. A stage's output is not counted: it
    is freed once it is sent, as in Megatron-LM (arXiv 2205.05198, appendix B).
    """
    element = precision.element
    widths = Widths.of(model, rows)
    kept = kept_by_layer(model, widths, element=element, dropout=dropout, device_kind=device_kind)
    vocabulary = padded_vocabulary(model.vocabulary_size, rows.tp) / rows.tp
    ends = Ends(matrix=vocabulary * model.hidden_size, logits=vocabulary * widths.tokens)
    parameters = stage_parameters(model, rows.tp, layers=rows.layers, first=rows.first, last=rows.last)
    states = model_states(parameters, rows.dp, rows.zero, precision)
    hidden = element * widths.outside * widths.tokens
    mask = mask_bytes(element, dropout=dropout, device_kind=device_kind)
    activations = (
        rows.live_layers * _kept_in_flight(rows, kept)
        + rows.late * rows.layers * kept.for_weights
        + rows.first * rows.live_first * mask * hidden / element
        + rows.last * (rows.live_last + rows.late) * 2.0 * hidden
    )
    logits = (element + LOG_PROBABILITY_BYTES) * rows.live_last + element * rows.late
    return Bytes(
        parameters=parameters,
        weights=states.weights,
        gradients=states.gradients,
        optimizer=states.optimizer,
        activations=activations,
        logits=rows.last * logits * ends.logits,
        working=working_bytes(model, rows, widths, kept, ends, element=element)
        + _whole_blocks(model, rows, ends, precision),
    )


def _kept_in_flight(rows: Rows, kept: Kept) -> Floats:
    """Bytes per layer and micro-batch in flight, by recomputation."""
    without_core = np.where(rows.recompute == SELECTIVE, kept.total - kept.core, kept.total)
    return np.where(rows.recompute == FULL, kept.block_input, without_core)


def _whole_blocks(model: ModelConfig, rows: Rows, ends: Ends, precision: Precision) -> Floats:
    """What ZeRO puts together again: of the largest block gradients (from 2 on), and with 3 the weights.

    With ZeRO-3 the next block's weights arrive while one works, so two are there.
    """
    layer = np.where(rows.layers > 0, layer_parameters(model, rows.tp), 0.0)
    end = np.maximum(rows.first, rows.last) * ends.matrix
    largest = np.maximum(layer, end)
    sharded = rows.dp > 1
    gradients = np.where(sharded & (rows.zero >= 2), precision.gradient * largest, 0.0)
    two = np.where(rows.layers > 0, layer + largest, largest)
    return gradients + np.where(sharded & (rows.zero >= 3), precision.weight * two, 0.0)


def _rows(parallelism: Parallelism, stages: tuple[Load, ...]) -> Rows:
    """The stages of one layout."""
    every = np.ones(len(stages))
    return Rows(
        tp=parallelism.tp * every,
        dp=parallelism.dp * every,
        micro_batch=parallelism.micro_batch * every,
        zero=parallelism.zero * every,
        sequence_parallel=float(parallelism.sequence_parallel) * every,
        recompute=RECOMPUTE_CODES[parallelism.recompute] * every,
        **{name: np.array([getattr(load, name) for load in stages], dtype=np.float64) for name in LOADED},
    )
