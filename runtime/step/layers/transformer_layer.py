"""One transformer layer: two norms, attention, MLP, two residual additions."""

from kernelcast.runtime.operators import Direction
from kernelcast.runtime.request.fields import Recompute
from kernelcast.runtime.step.calls import Calls, Component, call, forward
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
        beside = len(self._columns) if self._in_pieces else 0
        synced = self.sizes.synced(self.sizes.model.forward_syncs - beside)
        return (*synced, *self.attention.forward_collectives, *self.mlp.forward_collectives)

    @property
    def backward_collectives(self) -> Calls:
        """With sequence parallelism their gathers are those of a row-parallel product's output gradient."""
        s, syncs = self.sizes, self.sizes.model.backward_syncs
        summed = 0 if s.overlap == "none" else len(self._summed)
        if s.sequence_parallel:
            gathered = len(self._rows[:syncs]) if self._in_pieces else 0
            synced = (
                *s.synced(syncs - gathered, scatter=False),
                *s.synced(syncs - summed, gather=False),
            )
        else:
            synced = s.synced(syncs - summed)
        return (*synced, *self.mlp.backward_collectives, *self.attention.backward_collectives)

    @property
    def beside_forward(self) -> tuple[Beside, ...]:
        """Inputs of column-parallel products are gathered, outputs of row-parallel ones summed, a piece at a time."""
        if self.sizes.overlap != "products":
            return ()
        s, none = self.sizes, Beside(component=Component.BESIDE_FORWARD, in_pieces=True)
        pairs = [
            Beside(
                forward(s.synced(1, gather=gathers, scatter=not gathers)),
                self.products(Direction.FORWARD, *roles),
                Component.BESIDE_FORWARD,
                in_pieces=True,
            )
            for gathers, products in ((True, self._columns), (False, self._rows))
            for roles in products
            if self._in_pieces
        ]
        return (*pairs, *[none] * (4 - len(pairs)))

    @property
    def beside_backward(self) -> tuple[Beside, ...]:
        """Inputs gathered again beside their gradient, that gradient summed beside the weights', and the gradient of a
        row-parallel product's output gathered beside that of its input.
        """
        again = _two([self.gathered_again(*roles) for roles in self._columns], self.gathered_again())
        if self.sizes.overlap == "none":
            return again
        summed = [self.summed_beside_weights(*roles) for roles in self._summed]
        pairs = (*again, *_two(summed, self.summed_beside_weights()))
        if self.sizes.overlap != "products":
            return pairs
        gather = forward(self.sizes.synced(1, scatter=False))
        gathered = [
            Beside(gather, self.products(Direction.INPUT_GRADIENT, *roles), in_pieces=True)
            for roles in self._rows[: self.sizes.model.backward_syncs]
            if self._in_pieces
        ]
        return (*pairs, *_two(gathered, Beside(in_pieces=True)))

    @property
    def _in_pieces(self) -> bool:
        """Whether products are cut along the sequence to overlap: only where the sequence is."""
        return self.sizes.overlap == "products" and bool(self.sizes.sequence_parallel)

    @property
    def _columns(self) -> tuple[tuple[str, ...], ...]:
        """Column-parallel products by the input that they share: with one forward sync both read the same."""
        return _shared(self.sizes.model.forward_syncs, "qkv", self.mlp.up_role)

    @property
    def _summed(self) -> tuple[tuple[str, ...], ...]:
        """Column-parallel products by the sum of their inputs' gradients."""
        return _shared(self.sizes.model.backward_syncs, "qkv", self.mlp.up_role)

    @property
    def _rows(self) -> tuple[tuple[str, ...], ...]:
        """Row-parallel products by their sum; one of both runs beside the last of them."""
        found = _shared(self.sizes.model.forward_syncs, "attention_output", "mlp_down")
        return found if len(found) != 1 else (("mlp_down",),)

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


def _shared(syncs: int, first: str, second: str) -> tuple[tuple[str, ...], ...]:
    """Two products, which have a collective each, or share one, or have none."""
    return ((first,), (second,)) if syncs > 1 else ((first, second),) if syncs else ()


def _two(pairs: list[Beside], none: Beside) -> tuple[Beside, ...]:
    return (*pairs, *[none] * (2 - len(pairs)))
