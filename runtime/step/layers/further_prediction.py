"""A module that predicts a token further ahead (multi-token prediction, DeepSeek-V3, arXiv 2412.19437, section 2.2).

The hidden state and the embedding of the next token, each normalized, are projected to one (2d → d); a transformer
layer of the model's last kind follows, and the model's own output projection with a loss of its own (`Loss`). It runs
where the loss does, as in Megatron-core, and its projection is column-parallel and gathered as there.
"""

from kernelcast.runtime.step.calls import Beside, Calls, call
from kernelcast.runtime.step.layers.embedding import Embedding
from kernelcast.runtime.step.layers.kinds import kinds_of
from kernelcast.runtime.step.layers.norm import Norm
from kernelcast.runtime.step.layers.sizes import Kept, Layer, Number, calls_of
from kernelcast.runtime.step.layers.transformer_layer import TransformerLayer
from kernelcast.runtime.step.recomputation import Recomputation


class FurtherPrediction(Layer):
    """One such module on one device, without its final norm, logits and loss."""

    __slots__ = ()

    @property
    def layer(self) -> TransformerLayer:
        kinds = kinds_of(self.sizes.model)
        return TransformerLayer(self.sizes.of_kind(kinds.distinct[kinds.of_layer[-1]]))

    @property
    def embedding(self) -> Embedding:
        """The model's embedding, which it reads again."""
        return Embedding(self.sizes)

    @property
    def norm(self) -> Norm:
        """Either of the norms of what it projects."""
        return Norm(self.sizes)

    @property
    def calls(self) -> Calls:
        s = self.sizes
        return (
            *self.embedding.calls,
            *(one.times(2) for one in self.norm.calls),
            *s.linears.plain(s.tokens, 2 * s.hidden, s.hidden // s.tp, role="next_token"),
            *calls_of(self.layer),
        )

    @property
    def forward_collectives(self) -> Calls:
        """Those of embedding and layer; the projection's input, 2d wide, is gathered where cut, and its output."""
        s = self.sizes
        gathered = s.synced(2, scatter=False) if s.sequence_parallel else ()
        return (
            *self.embedding.forward_collectives,
            *gathered,
            *self._output_gathered,
            *self.layer.forward_collectives,
        )

    @property
    def _output_gathered(self) -> Calls:
        s, layout = self.sizes, (self.sizes.group.nodes, self.sizes.group.gpus_per_node)
        return (
            call("all_gather", s.tokens * (s.hidden // s.tp), *layout, role="tensor", count=int(s.tp > 1)),
        )

    @property
    def backward_collectives(self) -> Calls:
        """The projection's input is gathered again for its weights' gradient, and its gradient summed."""
        return (
            *self.embedding.backward_collectives,
            *self.sizes.synced(2),
            *self.layer.backward_collectives,
        )

    @property
    def beside_forward(self) -> tuple[Beside, ...]:
        return self.layer.beside_forward

    @property
    def beside_backward(self) -> tuple[Beside, ...]:
        return self.layer.beside_backward

    def recomputed(self, how: Recomputation) -> Calls:
        return self.layer.recomputed(how)

    def beside_again(self, how: Recomputation) -> tuple[Beside, ...]:
        return self.layer.beside_again(how)

    @property
    def expert_parameters(self) -> Number:
        return self.layer.expert_parameters

    @property
    def parameters(self) -> Number:
        """Layer, 2d·d/tp of the projection, and three norms, the last of them before the output projection."""
        s = self.sizes
        return self.layer.parameters + 2 * s.hidden * (s.hidden // s.tp) + 3 * self.norm.parameters

    def kept_bytes(self, kept: Kept) -> Number:
        """What both norms keep, and the embedding: all but the layer with its input."""
        return 2 * self.norm.kept_bytes(kept) + kept.element * self.sizes.local_tokens * self.sizes.hidden
