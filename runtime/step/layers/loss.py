"""The ends of a model: embeddings; final norm, output projection to the vocabulary, cross-entropy; further predictions.

A module that predicts a token further ahead (multi-token prediction, DeepSeek-V3, arXiv 2412.19437, section 2.2)
projects the hidden state and the embedding of the next token, each normalized, to one (2d → d); a transformer layer of
the model's last kind follows, and the model's own output projection with a loss of its own. It runs where the loss
does, as in Megatron-core, and its projection is column-parallel and gathered as there.
"""

from typing import Any

from kernelcast.runtime.operators import Direction
from kernelcast.runtime.step.chunks import kinds_of
from kernelcast.runtime.step.layers.linear import dropout, plain_linear
from kernelcast.runtime.step.layers.norm import norm, read_bytes
from kernelcast.runtime.step.layers.tensor_parallel import (
    Products,
    all_reduce,
    enter_region,
    gather,
    gather_columns,
    leave_region,
    scatter,
)
from kernelcast.runtime.step.layers.transformer_layer import transformer_layer
from kernelcast.runtime.step.op import Number, Op, Ops, flag, op
from kernelcast.runtime.step.passes import remembered_ops
from kernelcast.runtime.step.sizes import Sizes


def vocabulary_matrix(s: Sizes) -> Number:
    """Entries of the token embedding, or of the output projection, on one device, v·d/tp."""
    return s.vocabulary * s.hidden


def embedding(s: Sizes) -> Ops:
    """Vocabulary-parallel token embedding: rows of others' tokens are masked, partial rows summed; learned positions
    are whole on every device. Frozen, it has no backward pass.
    """
    directions = (Direction.FORWARD,) if s.is_frozen else None
    table = (s.tokens, s.vocabulary, s.hidden)
    return (
        op("embedding", "embedding", *table, directions=directions, parameters=vocabulary_matrix(s)),
        op("embedding_mask", "embedding_mask", s.tokens, s.hidden, count=flag(s.tp > 1)),
        *leave_region(s, "embedding", Products((), 1), Products((), 1), in_pieces=False),
        Op("positions", parameters=s.model.learned_positions * s.hidden),
        dropout(s, "embedding_dropout"),
    )


_LOSS_SYNCS = 3
"""Maxima, sums of exponentials and the targets' logits of the vocabulary's shards are combined, an entry per token."""
LOG_PROBABILITY_BYTES = 4
"""A plain loss is in fp32, whatever the logits are (torch's cross-entropy under autocast, Megatron-LM's too)."""
_IN_FLOAT32 = ("plain", "native")
LOGITS, CROSS_ENTROPY, FURTHER = "logits", "cross_entropy", "further."


@remembered_ops
def loss(s: Sizes) -> Ops:
    """Modules that predict further tokens, each with a loss, then final norm, logits and loss of the next token."""
    own, further = _next_token(s), s.model.extra_predictions
    if not further:
        return own
    # All predictions share the output projection.
    again = (one._replace(parameters=0) if one.name == LOGITS else one for one in own)
    return (*(one.times(further, FURTHER) for one in (*_further_prediction(s), *again)), *own)


def _next_token(s: Sizes) -> Ops:
    """Parameters `2d + v·d/tp` with LayerNorm. The final norm keeps its input and output."""
    one = Products((LOGITS,), 1)
    at_loss, after = _gradient_bytes(s)
    table = (s.tokens, s.hidden, s.vocabulary)
    kept = {"parameters": vocabulary_matrix(s), "saves": logit_bytes(s), "gradients": after}
    shape = (s.micro_batch, s.length, s.vocabulary)
    of_loss: dict[str, Any] = {"saves": log_probability_bytes(s), "gradients": at_loss, "needs": "output"}
    return (
        norm(s, "final_norm", module="")._replace(saves=s.activation_bytes + read_bytes(s)),
        # The paper's composition has no collective of the logits' input in the backward pass.
        *enter_region(s, LOGITS, one, one, in_pieces=False),
        plain_linear(s, LOGITS, *table, **kept),
        op(CROSS_ENTROPY, "cross_entropy", *shape, **of_loss),
        all_reduce(s, "combine_loss", "forward", _LOSS_SYNCS, width=1),
    )


def _further_prediction(s: Sizes) -> Ops:
    """One module without its final norm, logits and loss: 2d·d/tp parameters of the projection, two norms, a layer."""
    kinds = kinds_of(s.model)
    columns = s.hidden // s.tp
    before = norm(s, "hidden_norm", module="")
    return (
        *(one._replace(parameters=0) for one in embedding(s)),
        before,
        before._replace(name="embedding_norm", saves=before.saves + s.activation_bytes),
        gather(s, "gather_next_token", "forward", s.hidden, 2),
        plain_linear(s, "next_token", s.tokens, 2 * s.hidden, columns, parameters=2 * s.hidden * columns),
        gather_columns(s, "gather_next_token_columns", columns),
        # The projection's input is gathered again for its weights' gradient, and its gradient summed.
        gather(s, "gather_next_token_again", "backward", s.hidden, 2),
        all_reduce(s, "sum_next_token_gradient", "backward", 2),
        scatter(s, "scatter_next_token_gradient", "backward", 2),
        *transformer_layer(s.of_kind(kinds.distinct[kinds.of_layer[-1]])),
    )


def logit_entries(s: Sizes) -> Number:
    """Entries of one micro-batch's logits on one device."""
    return s.vocabulary * s.tokens


def logit_bytes(s: Sizes) -> Number:
    """Logits that stay until the backward pass; a plain loss that reuses its memory lets go of them."""
    is_dropped = s.layout.loss in _IN_FLOAT32 and s.modules.reuses_loss
    return (0 if is_dropped else s.element_bytes) * logit_entries(s)


def log_probability_bytes(s: Sizes) -> Number:
    """What a plain loss keeps in fp32 for its backward pass; fused ones keep a number per token."""
    return (LOG_PROBABILITY_BYTES if s.layout.loss in _IN_FLOAT32 else 0) * logit_entries(s)


def _gradient_bytes(s: Sizes) -> tuple[Number, Number]:
    """Gradients of the logits at the loss, and after it at the output product.

    A plain loss has two in fp32 (of the log-probabilities, then of the logits), or more where tensor parallelism cuts
    the vocabulary. One that reuses its memory has its
    gradient in the place of the probabilities, and a copy of it in the training's type unless that is fp32; compiled
    ("native"), it does not write over what it reads, and another copy in fp32 exists. A fused
    loss has only the gradient that the product takes, and in place that is written over the logits.
    """
    element = s.element_bytes
    own = (0 if s.layout.loss == "in_place" else element) * logit_entries(s)
    if s.layout.loss not in _IN_FLOAT32:
        return own, own
    if s.modules.reuses_loss:
        another = log_probability_bytes(s) if s.layout.loss == "native" else 0
        return (0 if element == LOG_PROBABILITY_BYTES else 1) * own + another, own
    copies = 2 + flag(s.tp > 1) * (s.modules.sharded_loss_copies - 2)
    return copies * log_probability_bytes(s), own
