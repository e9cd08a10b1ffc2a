"""One transformer layer: two norms, attention, MLP, two residual additions."""

from kernelcast.runtime.request.fields import Recompute
from kernelcast.runtime.step.calls import Calls, call, forward
from kernelcast.runtime.step.layers.attention import Attention
from kernelcast.runtime.step.layers.mlp import Mlp
from kernelcast.runtime.step.layers.norm import Norm
from kernelcast.runtime.step.layers.sizes import Beside, Kept, Layer, Number


class TransformerLayer(Layer):
    """What every transformer layer of a model calls, holds and keeps."""

    __slots__ = ()

    @property
    def norm(self) -> Norm:
        """Either of its two norms."""
        return Norm(self.sizes)

    @property
    def attention(self) -> Attention:
        """Its attention."""
        return Attention(self.sizes)

    @property
    def mlp(self) -> Mlp:
        """Its MLP."""
        return Mlp(self.sizes)

    @property
    def calls(self) -> Calls:
        s = self.sizes
        return (
            *(one.times(2) for one in self.norm.calls),
            *self.attention.calls,
            call("residual_add", s.micro_batch, s.local_length, s.hidden, count=2),
            *self.mlp.calls,
        )

    @property
    def forward_collectives(self) -> Calls:
        """One all-reduce after attention, one after the MLP (one for both with a parallel residual), and their own."""
        synced = self.sizes.synced(self.sizes.model.forward_syncs)
        return (*synced, *self.attention.forward_collectives, *self.mlp.forward_collectives)

    @property
    def backward_collectives(self) -> Calls:
        synced = self.sizes.synced(self.sizes.model.backward_syncs)
        return (*synced, *self.mlp.backward_collectives, *self.attention.backward_collectives)

    @property
    def gathered_again(self) -> tuple[Beside, ...]:
        """Those of queries, keys and values and of the MLP; with one forward sync they share theirs."""
        qkv, up = "qkv", self.mlp.up_role
        syncs = self.sizes.model.forward_syncs
        of_each = ((qkv,), (up,)) if syncs > 1 else ((qkv, up) if syncs else (), ())
        return tuple(self.beside_input_gradient(*roles) for roles in of_each)

    def recomputed(self, recompute: Recompute) -> Calls:
        """What its backward pass runs again of its forward pass."""
        if recompute == "full":
            return forward((*self.calls, *self.forward_collectives))
        return forward(self.attention.core_calls) if recompute == "selective" else ()

    @property
    def parameters(self) -> Number:
        """For LayerNorm, GeLU, multi-head attention and an MLP of 4d: `4d + 8d(d+1)/tp + d(4d+1)/tp` (Table III)."""
        return 2 * self.norm.parameters + self.attention.parameters + self.mlp.parameters

    @property
    def matrices(self) -> Number:
        """Entries of its weight matrices, without biases and norms."""
        return self.attention.matrices + self.mlp.matrices

    def input_bytes(self, kept: Kept) -> Number:
        """Its input, which is the first norm's: all that full recomputation keeps."""
        return kept.element * self.sizes.local_tokens * self.sizes.hidden

    def mlp_bytes(self, kept: Kept) -> Number:
        """What its MLP's half keeps; with a parallel residual the second norm's input is the first's."""
        second_input = 0 if self.sizes.model.parallel_residual else self.input_bytes(kept)
        return self.norm.kept_bytes(kept) + second_input + self.mlp.kept_bytes(kept)

    def kept_bytes(self, kept: Kept) -> Number:
        """Both halves with the core of attention, without its input.

        With GeLU, LayerNorm, dropout and a softmax of its own, this and the input are eq. 1–4 of arXiv 2205.05198,
        sbh(34 + 5as/h), except for the norms' statistics, which it leaves out.
        """
        attention = self.norm.kept_bytes(kept) + self.attention.kept_bytes(kept)
        return attention + self.attention.core_bytes(kept) + self.mlp_bytes(kept)

    def weight_gradient_bytes(self, kept: Kept) -> Number:
        """What a backward pass without weight gradients leaves for those (zero-bubble)."""
        return self.attention.weight_gradient_bytes(kept) + self.mlp.weight_gradient_bytes(kept)
