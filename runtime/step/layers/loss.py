"""The last end of a model: final norm, output projection to the vocabulary, cross-entropy; further predictions."""

from kernelcast.runtime.step.calls import Beside, Calls, call
from kernelcast.runtime.step.layers.further_prediction import FurtherPrediction
from kernelcast.runtime.step.layers.linear import Matrix
from kernelcast.runtime.step.layers.norm import Norm
from kernelcast.runtime.step.layers.sizes import Kept, Layer, Number
from kernelcast.runtime.step.recomputation import Recomputation

_LOSS_SYNCS = 3
"""Maxima, sums of exponentials and the targets' logits of the vocabulary's shards are combined, an entry per token."""
LOG_PROBABILITY_BYTES = 4
"""A plain loss is in fp32, whatever the logits are (torch's cross-entropy under autocast, Megatron-LM's too)."""


class Loss(Layer):
    """Final norm, vocabulary-parallel logits and loss, and the same again behind every module that predicts further."""

    __slots__ = ()

    @property
    def further(self) -> FurtherPrediction:
        """Any of the modules that predict further tokens."""
        return FurtherPrediction(self.sizes)

    @property
    def _extra(self) -> int:
        return self.sizes.model.extra_predictions

    @property
    def predictions(self) -> int:
        """Losses of a step: the next token's, and those of further ones."""
        return 1 + self._extra

    def _with_further(self, own: Calls, further: Calls) -> Calls:
        if not self._extra:
            return own
        return (*_times(own, self.predictions), *_times(further, self._extra))

    @property
    def norm(self) -> Norm:
        return Norm(self.sizes)

    @property
    def calls(self) -> Calls:
        s = self.sizes
        own = (
            *self.norm.calls,
            *s.linears.plain(s.tokens, s.hidden, s.vocabulary, role="logits"),
            call("cross_entropy", s.micro_batch, s.length, s.vocabulary),
        )
        return self._with_further(own, self.further.calls if self._extra else ())

    @property
    def forward_collectives(self) -> Calls:
        """With sequence parallelism what the logits read is gathered; the loss combines the vocabulary's shards."""
        s = self.sizes
        gather = s.synced(1, scatter=False) if s.sequence_parallel else ()
        further = self.further.forward_collectives if self._extra else ()
        return self._with_further((*gather, *s.synced(_LOSS_SYNCS, width=1)), further)

    @property
    def backward_collectives(self) -> Calls:
        """Gradients of what the logits read are summed, as those of every other column-parallel linear.

        The paper's composition has no collective here.
        """
        own = self.sizes.synced(1, gather=False) if self.sizes.overlap == "none" else ()
        return self._with_further(own, self.further.backward_collectives if self._extra else ())

    @property
    def beside_forward(self) -> tuple[Beside, ...]:
        return tuple(one.times(self._extra) for one in self.further.beside_forward) if self._extra else ()

    @property
    def beside_backward(self) -> tuple[Beside, ...]:
        """What the logits read is gathered, and its gradient summed; its product is no layer's, and not in pieces."""
        again = self.gathered_again("logits")
        own = (again,) if self.sizes.overlap == "none" else (again, self.summed_beside_weights("logits"))
        if not self._extra:
            return own
        # The products are listed with all predictions already.
        every = (one._replace(collective=_times(one.collective, self.predictions)) for one in own)
        return (*every, *(one.times(self._extra) for one in self.further.beside_backward))

    def recomputed(self, how: Recomputation) -> Calls:
        """The layers of further predictions."""
        return _times(self.further.recomputed(how), self._extra) if self._extra else ()

    def beside_again(self, how: Recomputation) -> tuple[Beside, ...]:
        return tuple(one.times(self._extra) for one in self.further.beside_again(how)) if self._extra else ()

    @property
    def matrix(self) -> Number:
        """Entries of the output projection on one device, v·d/tp."""
        return self.sizes.vocabulary * self.sizes.hidden

    @property
    def logits(self) -> Number:
        """Entries of one micro-batch's logits on one device."""
        return self.sizes.vocabulary * self.sizes.tokens

    def logit_bytes(self, kept: Kept) -> Number:
        """Logits that stay until the backward pass; a plain loss that reuses its memory lets go of them."""
        is_dropped = kept.loss == "plain" and kept.modules.reuses_loss
        return (0 if is_dropped else kept.element) * self.logits

    def log_probability_bytes(self, kept: Kept) -> Number:
        """What a plain loss keeps in fp32 for its backward pass; fused ones keep a number per token."""
        return LOG_PROBABILITY_BYTES * self.logits if kept.loss == "plain" else 0 * self.logits

    def gradient_bytes(self, kept: Kept) -> tuple[Number, Number]:
        """Gradients of the logits at the loss, and after it at the output product.

        A plain loss has two in fp32 (of the log-probabilities, then of the logits). One that reuses its memory has its
        gradient in the place of the probabilities, and a copy of it in the training's type unless that is fp32. A fused
        loss has only the gradient that the product takes, and in place that is written over the logits.
        """
        own = (0 if kept.loss == "in_place" else kept.element) * self.logits
        if kept.loss != "plain":
            return own, own
        if kept.modules.reuses_loss:
            return (0 if kept.element == LOG_PROBABILITY_BYTES else 1) * own, own
        return 2 * self.log_probability_bytes(kept), own

    @property
    def parameters(self) -> Number:
        """Final norm and output projection, `2d + v·d/tp` with LayerNorm; further predictions share the projection.

        A stage that also embeds shares tied ones.
        """
        own = self.norm.parameters + self.matrix
        return own + self._extra * self.further.parameters if self._extra else own

    @property
    def expert_parameters(self) -> Number:
        return self._extra * self.further.expert_parameters if self._extra else 0

    @property
    def weights(self) -> tuple[Matrix, ...]:
        """Those of further predictions' layers."""
        if not self._extra:
            return ()
        return tuple(one._replace(count=self._extra * one.count) for one in self.further.layer.weights)

    def kept_bytes(self, kept: Kept) -> Number:
        """The final norm's input and output, of every prediction, and what leads to the further ones' layers.

        Logits and these layers are counted apart.
        """
        own = 2.0 * kept.element * self.sizes.local_tokens * self.sizes.hidden
        return self.predictions * own + (self._extra * self.further.kept_bytes(kept) if self._extra else 0)


def _times(calls: Calls, factor: int) -> Calls:
    return calls if factor == 1 else tuple(one.times(factor) for one in calls)
