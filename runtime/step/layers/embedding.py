"""The first end of a model: token embedding, and learned positions."""

from kernelcast.runtime.operators import Direction
from kernelcast.runtime.step.layers.linear import dropout
from kernelcast.runtime.step.layers.tensor_parallel import Products, leave_region
from kernelcast.runtime.step.op import Number, Op, Ops, flag, op
from kernelcast.runtime.step.sizes import Sizes


def vocabulary_matrix(s: Sizes) -> Number:
    """Entries of the token embedding, or of the output projection, on one device, v·d/tp."""
    return s.vocabulary * s.hidden


def embedding(s: Sizes) -> Ops:
    """Vocabulary-parallel token embedding: rows of other devices' tokens are masked, and the partial rows summed.

    Learned positions, where the model has them, are whole on every device. A frozen embedding, the first op of all,
    has no backward pass.
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
