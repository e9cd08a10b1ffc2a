"""Memory in use on top of what is kept: the gradients on their way at the fullest moment, and buffers."""

import numpy as np

from kernelcast.runtime.memory.rows import FULL, SELECTIVE, Floats, Rows
from kernelcast.runtime.step.layers.loss import Loss
from kernelcast.runtime.step.layers.sizes import Kept
from kernelcast.runtime.step.layers.transformer_layer import TransformerLayer

_TOKEN_ID_BYTES = 8


def working_bytes(rows: Rows, layer: TransformerLayer, loss: Loss, kept: Kept) -> Floats:
    """Bytes in use at a device's fullest moment beyond states, kept activations and logits, float64 [rows].

    The backward pass of the micro-batch that is furthest frees what was kept as it goes, so the fullest
    moment is one of five, with hidden size d, MLP width f, and v·d the vocabulary matrix:

    - loss: the gradients of the logits, see `Loss.gradient_bytes`;
    - output product: the gradients of logits, hidden state and weights (v·d) exist, with sequence parallelism its
      gathered input and the gradient of that too, the log-probabilities no longer;
    - last layer's MLP, log-probabilities freed: the gradient of its output (d), and the larger of f with
      the down projection's weight gradient (f·d) and, with sequence parallelism, the gathered gradient of its output;
      and of 2f for SwiGLU's halves. What full recomputation dropped exists again;
    - last layer's attention, its MLP freed: twice its scores (the gradients before and after the softmax)
      where they exist, and what selective recomputation dropped;
    - embedding, the first chunk's layers freed: its weight gradient (v·d).

    Weight gradients are made whole and then added to the accumulated ones, as from the second micro-batch of
    an update on. Modules that add a layer's by the product itself keep an unused gradient per weight matrix instead.
    Other buffers: rotary tables, the unfused softmax's mask, token ids.
    """
    sizes, element = layer.sizes, kept.element
    block_input = layer.input_bytes(kept)
    total, core = block_input + layer.kept_bytes(kept), layer.attention.core_bytes(kept)
    gathered = sizes.sequence_parallel * element * sizes.tokens * sizes.hidden
    log_probabilities = rows.last * loss.log_probability_bytes(kept)
    recomputed = np.where(rows.recompute == FULL, total - block_input, 0.0)
    core_again = np.where(rows.recompute == SELECTIVE, core, 0.0)

    at_loss, of_logits = loss.gradient_bytes(kept)
    loss_moment = 1.0 * rows.last * at_loss
    product = of_logits + element * loss.matrix + block_input + 2 * gathered
    output = rows.last * product - log_probabilities
    at_projection, at_activation = layer.mlp.gradient_bytes(kept)
    mlp = block_input + np.maximum(gathered + at_projection, at_activation) + recomputed - log_probabilities
    attention = layer.attention.gradient_bytes(kept) + block_input + recomputed + core_again
    attention = attention - layer.mlp_bytes(kept) - log_probabilities
    kept_per_layer = np.where(rows.recompute == FULL, block_input, total - core_again)
    embedding = rows.first * element * loss.matrix + block_input - rows.chunk_layers * kept_per_layer

    has_layers = rows.layers > 0
    peak = np.maximum(loss_moment, output)
    peak = np.maximum(peak, np.where(has_layers, np.maximum(mlp, attention), 0.0))
    ids = _TOKEN_ID_BYTES * sizes.tokens * (rows.first * rows.live_first + rows.last * rows.live_last)
    unused = element * layer.matrices if kept.modules.accumulates_in_products else 0.0
    buffers = np.where(has_layers, layer.attention.buffer_bytes + unused, 0.0) + ids
    fullest: Floats = np.maximum(peak, embedding) + buffers
    return fullest
