"""The first end of a model: token embedding, and learned positions."""

from kernelcast.runtime.operators import Direction
from kernelcast.runtime.step.calls import Calls, call
from kernelcast.runtime.step.layers.sizes import Kept, Layer, Number


class Embedding(Layer):
    """Vocabulary-parallel token embedding; learned positions, where the model has them, are whole on every device."""

    __slots__ = ()

    @property
    def calls(self) -> Calls:
        """Rows of other devices' tokens are masked where the vocabulary is cut."""
        s = self.sizes
        # A frozen embedding, the first layer of all, has no backward pass.
        only = Direction.FORWARD if s.linears.is_frozen else Direction.ONCE
        return (
            call("embedding", s.tokens, s.vocabulary, s.hidden, direction=only),
            call("embedding_mask", s.tokens, s.hidden, count=int(s.tp > 1)),
            call("dropout", s.local_tokens, s.hidden, count=s.drops),
        )

    @property
    def forward_collectives(self) -> Calls:
        """The devices' partial rows are summed."""
        return self.sizes.synced(1, gather=False)

    @property
    def backward_collectives(self) -> Calls:
        """With sequence parallelism the gradients' shards are gathered; else every device has them whole."""
        return self.sizes.synced(1, scatter=False) if self.sizes.sequence_parallel else ()

    @property
    def matrix(self) -> Number:
        """Entries of the token embedding on one device, v·d/tp."""
        return self.sizes.vocabulary * self.sizes.hidden

    @property
    def parameters(self) -> Number:
        return self.matrix + self.sizes.model.learned_positions * self.sizes.hidden

    def kept_bytes(self, kept: Kept) -> Number:
        """A dropout's mask."""
        return kept.mask * self.sizes.local_tokens * self.sizes.hidden
