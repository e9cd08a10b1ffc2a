"""The ends of a model: embedding and loss, on the local shard of the vocabulary."""

from torch import Tensor

from kernelcast.collector.benches.bench import Bench, Place
from kernelcast.collector.functions.transformer import token_loss
from kernelcast.collector.functions.vocabulary_parallel import (
    local_rows,
    mask_rows,
    vocabulary_parallel_embedding,
)
from kernelcast.runtime.operators import Shape


def embedding(s: Shape, place: Place) -> Bench:
    """Lookup in the local rows; its gradient is dense: zeros, added into, and added to what is there."""
    ids = place.indices(s.local_vocabulary, s.micro_batch, s.sequence_length)
    weight = place.parameter(s.local_vocabulary, s.hidden_size)
    return Bench(lambda: vocabulary_parallel_embedding(ids, weight, None), [], [weight])


def embedding_mask(s: Shape, place: Place) -> Bench:
    """What tensor parallelism adds to the lookup: tokens of other shards found, their rows set to zero."""
    x = place.activation(s.micro_batch, s.sequence_length, s.hidden_size)
    rows = s.local_vocabulary
    ids = place.indices(2 * rows, s.micro_batch, s.sequence_length)

    def forward() -> Tensor:
        _, elsewhere = local_rows(ids, 0, rows)
        return mask_rows(x, elsewhere)

    return Bench(forward, [x])


def cross_entropy(s: Shape, place: Place) -> Bench:
    """Mean loss over the local columns of the logits; sums over the shards are collectives of their own."""
    logits = place.activation(s.micro_batch, s.sequence_length, s.local_vocabulary)
    targets = place.indices(s.local_vocabulary, s.micro_batch, s.sequence_length)
    return Bench(lambda: token_loss(logits, targets), [logits])
