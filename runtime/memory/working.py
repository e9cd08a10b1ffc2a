"""Memory in use beside what is kept: the gradients on their way at the fullest moment, and buffers."""

from dataclasses import dataclass

import numpy as np

from kernelcast.runtime.memory.layer import Kept, Widths
from kernelcast.runtime.memory.rows import FULL, SELECTIVE, Floats, Rows
from kernelcast.runtime.request.model import ModelConfig

LOG_PROBABILITY_BYTES = 4
"""The loss is computed in fp32, whatever the logits are (torch's cross-entropy under autocast, Megatron-LM's too)."""
_TOKEN_ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class Ends:
    """Entries on one device, float64 [rows]: of the vocabulary matrix, and of one micro-batch's logits."""

    matrix: Floats
    logits: Floats


def working_bytes(
    model: ModelConfig, rows: Rows, widths: Widths, kept: Kept, ends: Ends, *, element: int
) -> Floats:
    """Bytes in use at a device's fullest moment beyond states, kept activations and logits, float64 [rows].

    The backward pass of the micro-batch that is furthest frees what was kept as it goes, so the fullest
    moment is one of five. Each needs, with d, f, a as in `kept_by_layer`, v·d the vocabulary matrix:

    - loss: two fp32 gradients of the logits (of the log-probabilities, then of the logits);
    - output product: the gradients of logits, hidden state and weights (v·d) are there, the
      log-probabilities no more;
    - last layer's MLP, log-probabilities freed: the gradient of its output (d), and the larger of f with
      the down projection's weight gradient (f·d), and 2f for SwiGLU's halves; with sequence parallelism the
      gathered gradient too. What full recomputation kept back is there again;
    - last layer's attention, its MLP freed: twice its scores (the gradients before and after the softmax)
      where they exist, and what selective recomputation kept back;
    - embedding, the first chunk's layers freed: its weight gradient (v·d).

    Weight gradients are made whole and then added to those that are there, as from the second micro-batch of
    an update on. Buffers: rotary tables, the unfused softmax's mask, token ids.
    """
    hidden, local_mlp = element * widths.outside * widths.tokens, element * widths.tokens * widths.mlp
    gathered = rows.sequence_parallel * element * widths.tokens * widths.hidden
    log_probabilities = rows.last * LOG_PROBABILITY_BYTES * ends.logits
    recomputed = np.where(rows.recompute == FULL, kept.total - kept.block_input, 0.0)
    core_again = np.where(rows.recompute == SELECTIVE, kept.core, 0.0)

    loss = 2.0 * log_probabilities
    output = rows.last * (element * (ends.logits + ends.matrix) + hidden) - log_probabilities
    down_gradient = element * widths.mlp * widths.hidden
    gated = local_mlp if model.activation == "swiglu" else 0.0
    layer = hidden + gathered + local_mlp + np.maximum(down_gradient, gated) + recomputed - log_probabilities
    attention = _attention_gradients(model, widths, element) + hidden + recomputed + core_again
    attention = attention - kept.mlp - log_probabilities
    kept_per_layer = np.where(rows.recompute == FULL, kept.block_input, kept.total - core_again)
    embedding = rows.first * element * ends.matrix + hidden - rows.chunk_layers * kept_per_layer

    has_layers = rows.layers > 0
    peak = np.maximum(loss, output)
    peak = np.maximum(peak, np.where(has_layers, np.maximum(layer, attention), 0.0))
    return np.maximum(peak, embedding) + _buffers(model, rows)


def _attention_gradients(model: ModelConfig, widths: Widths, element: int) -> Floats:
    if model.attention == "flash":
        return element * widths.tokens * (widths.attended + widths.projected)
    return element * widths.tokens * (2.0 * widths.scores + widths.attended)


def _buffers(model: ModelConfig, rows: Rows) -> Floats:
    layer = 2 * 4 * model.sequence_length * model.head_size if model.rotary else 0
    if model.attention == "unfused":
        layer += model.sequence_length**2
    ids = _TOKEN_ID_BYTES * rows.micro_batch * model.sequence_length
    waiting = rows.first * rows.live_first + rows.last * rows.live_last
    return np.where(rows.layers > 0, float(layer), 0.0) + ids * waiting
