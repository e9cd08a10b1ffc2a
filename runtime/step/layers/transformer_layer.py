"""One transformer layer: two norms, attention, MLP, two residual additions."""

from kernelcast.runtime.operators import Direction
from kernelcast.runtime.request.fields import LinearKind
from kernelcast.runtime.step.calls import Beside, Calls, Component, backward, call, forward
from kernelcast.runtime.step.layers.attention import Attention
from kernelcast.runtime.step.layers.experts import Experts
from kernelcast.runtime.step.layers.latent_attention import LatentAttention
from kernelcast.runtime.step.layers.linear import Matrix
from kernelcast.runtime.step.layers.mlp import Mlp
from kernelcast.runtime.step.layers.norm import Norm
from kernelcast.runtime.step.layers.once import once
from kernelcast.runtime.step.layers.sizes import Kept, Layer, Number, calls_of
from kernelcast.runtime.step.recomputation import Recomputation


class TransformerLayer(Layer):
    """What every transformer layer of a model calls, holds and keeps."""

    __slots__ = ()

    @property
    def norm(self) -> Norm:
        """Either of its two norms."""
        return Norm(self.sizes)

    @property
    def attention(self) -> Attention:
        """Its attention, which is the same whatever experts follow."""
        sizes = self.sizes.without_experts
        return LatentAttention(sizes) if sizes.model.kv_rank else Attention(sizes)

    @property
    def mlp(self) -> Mlp:
        """Its MLP, or its experts."""
        return Experts(self.sizes) if self.sizes.kind.has_experts else Mlp(self.sizes)

    @property
    def norms(self) -> int:
        """Its norms over the hidden size: two before attention and MLP, and perhaps two after them."""
        return 4 if self.sizes.model.post_norms else 2

    @property
    def _syncs(self) -> tuple[int, int]:
        """Sums across the tensor-parallel group, forward and backward; experts' are no such sum, shared ones' are."""
        model = self.sizes.model
        if not self.sizes.kind.has_experts or model.shared_expert_size:
            return model.forward_syncs, model.backward_syncs
        return max(0, model.forward_syncs - 1), max(0, model.backward_syncs - 1)

    @property
    @once
    def calls(self) -> Calls:
        s = self.sizes
        return (
            *(one.times(self.norms) for one in self.norm.calls),
            *calls_of(self.attention),
            call("residual_add", s.micro_batch, s.local_length, s.hidden, count=2),
            *calls_of(self.mlp),
        )

    @property
    @once
    def forward_collectives(self) -> Calls:
        """One all-reduce after attention, one after the MLP (one for both with a parallel residual), and their own."""
        beside = len(self._columns) if self._in_pieces else 0
        synced = self.sizes.synced(self._syncs[0] - beside)
        return (*synced, *self.attention.forward_collectives, *self.mlp.forward_collectives)

    @property
    @once
    def backward_collectives(self) -> Calls:
        """With sequence parallelism their gathers are those of a row-parallel product's output gradient."""
        s, syncs = self.sizes, self._syncs[1]
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
    @once
    def beside_forward(self) -> tuple[Beside, ...]:
        """Inputs of column-parallel products are gathered, outputs of row-parallel ones summed, a piece at a time."""
        own = (*self.attention.beside_forward, *self._beside_other(Direction.FORWARD))
        if self.sizes.overlap != "products":
            return own
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
        return (*pairs, *[none] * (4 - len(pairs)), *own)

    @property
    @once
    def beside_backward(self) -> tuple[Beside, ...]:
        """Inputs gathered again beside their gradient, that gradient summed beside the weights', and the gradient of a
        row-parallel product's output gathered beside that of its input.
        """
        again = _two([self.gathered_again(*roles) for roles in self._columns], self.gathered_again())
        again = (*again, *self.attention.beside_backward, *self._beside_other(Direction.BACKWARD))
        if self.sizes.overlap == "none":
            return again
        summed = [self.summed_beside_weights(*roles) for roles in self._summed]
        pairs = (*again, *_two(summed, self.summed_beside_weights()))
        if self.sizes.overlap != "products":
            return pairs
        gather = forward(self.sizes.synced(1, scatter=False))
        gathered = [
            Beside(gather, self.products(Direction.INPUT_GRADIENT, *roles), in_pieces=True)
            for roles in self._rows[: self._syncs[1]]
            if self._in_pieces
        ]
        return (*pairs, *_two(gathered, Beside(in_pieces=True)))

    def _beside_other(self, direction: Direction) -> tuple[Beside, ...]:
        """The exchange with experts, while a layer computes as much for another micro-batch.

        An empty place without: layouts of a search have as many collectives beside computing, whatever their schedule.
        """
        if not self.sizes.model.experts:
            return ()
        is_forward = direction is Direction.FORWARD
        component = Component.BESIDE_FORWARD if is_forward else Component.BESIDE_BACKWARD
        exchanges = self.mlp.exchanges if self.sizes.overlaps_experts else ()
        if not exchanges:
            return (Beside(component=component, of_another=True),)
        compute = forward(calls_of(self)) if is_forward else backward(calls_of(self))
        return (Beside(forward(exchanges), compute, component, of_another=True),)

    @property
    def _in_pieces(self) -> bool:
        """Whether products are cut along the sequence to overlap: only where the sequence is."""
        return self.sizes.overlap == "products" and bool(self.sizes.sequence_parallel)

    @property
    def _columns(self) -> tuple[tuple[str, ...], ...]:
        """Column-parallel products by the input that they share: with one forward sync both read the same."""
        return _shared(self._syncs[0], self.attention.up_roles, self.mlp.up_role)

    @property
    def _summed(self) -> tuple[tuple[str, ...], ...]:
        """Column-parallel products by the sum of their inputs' gradients."""
        return _shared(self._syncs[1], self.attention.up_roles, self.mlp.up_role)

    @property
    def _rows(self) -> tuple[tuple[str, ...], ...]:
        """Row-parallel products by their sum; one of both runs beside the last of them."""
        found = _shared(self._syncs[0], ("attention_output",), self.mlp.down_role)
        return found if len(found) != 1 else ((found[0][-1],),)

    def recomputed(self, how: Recomputation) -> Calls:
        """What its backward pass runs again of its forward pass."""
        if how.kind == "full":
            return forward(
                self._until_last_kept if how.stops_early else (*calls_of(self), *self.forward_collectives)
            )
        calls: Calls = ()
        if how.runs_again("core_attn"):
            calls += self.attention.core_calls
        if how.runs_again("layernorm"):
            calls += tuple(one.times(self.norms) for one in self.norm.calls)
        if how.runs_again("mlp"):
            own = int(self._syncs[0] > 1)
            whole = (*self.mlp.calls, *self.sizes.synced(own))
            calls += (*self.mlp.until_last_kept, *self._gathered(own)) if how.stops_early else whole
            calls += self.mlp.forward_collectives
            if self.sizes.overlaps_experts:  # what is run again has no other micro-batch beside it
                calls += self.mlp.exchanges
        return forward(calls)

    @property
    def _until_last_kept(self) -> Calls:
        """Calls up to the last tensor that its backward pass needs; the MLP is its last part.

        What follows the MLP are residual additions, one or with a parallel residual both, and its all-reduce.
        """
        s = self.sizes
        additions = 0 if s.model.parallel_residual else 1
        # Those that run beside products are `beside_again`.
        syncs = self._syncs[0] - (len(self._columns) if self._in_pieces else 0)
        return (
            *(one.times(self.norms) for one in self.norm.calls),
            *calls_of(self.attention),
            call("residual_add", s.micro_batch, s.local_length, s.hidden, count=additions),
            *self.mlp.until_last_kept,
            *(s.synced(syncs - 1) if syncs else ()),
            *self._gathered(int(syncs > 0)),
            *self.attention.forward_collectives,
            *self.mlp.forward_collectives,
        )

    def beside_again(self, how: Recomputation) -> tuple[Beside, ...]:
        """Collectives beside products that full recomputation runs again: all, or those up to the last kept tensor."""
        stops = how.stops_early and not self.sizes.drops
        return tuple(
            one._replace(collective=(), compute=())
            if (stops and any(product.role == "mlp_down" for product in one.compute))
            else one
            for one in self.beside_forward
        )

    def _gathered(self, count: int) -> Calls:
        """Gathers alone of as many all-reduces, with sequence parallelism."""
        return self.sizes.synced(count, scatter=False) if self.sizes.sequence_parallel else ()

    @property
    def expert_parameters(self) -> Number:
        return self.mlp.expert_parameters

    @property
    def parameters(self) -> Number:
        """For LayerNorm, GeLU, multi-head attention and an MLP of 4d: `4d + 8d(d+1)/tp + d(4d+1)/tp` (Table III)."""
        return self.norms * self.norm.parameters + self.attention.parameters + self.mlp.parameters

    @property
    def weights(self) -> tuple[Matrix, ...]:
        return (*self.attention.weights, *self.mlp.weights)

    def input_bytes(self, kept: Kept) -> Number:
        """Its input, which is the first norm's: all that full recomputation keeps."""
        return kept.element * self.sizes.local_tokens * self.sizes.hidden

    def mlp_bytes(self, kept: Kept) -> Number:
        """What its MLP's half keeps; with a parallel residual the second norm's input is the first's."""
        second_input = 0 if self.sizes.model.parallel_residual else self.input_bytes(kept)
        return self.norm_bytes(kept, self.mlp.input_kind) + second_input + self.mlp.kept_bytes(kept)

    def norm_bytes(self, kept: Kept, read_by: LinearKind | None) -> Number:
        """What a norm keeps whose output linears alone read."""
        element = kept.element
        own = 0 if read_by is None else self.sizes.linears.input_bytes(read_by, element) - element
        return self.norm.kept_bytes(kept) + own * self.sizes.local_tokens * self.sizes.hidden

    def kept_bytes(self, kept: Kept) -> Number:
        """Both halves with the core of attention, without its input.

        With GeLU, LayerNorm, dropout and a softmax of its own, this and the input are eq. 1–4 of arXiv 2205.05198,
        sbh(34 + 5as/h), except for the norms' statistics, which it leaves out.
        """
        attention = self.norm_bytes(kept, "attention") + self.attention.kept_bytes(kept)
        linears = self.sizes.linears
        adapters = linears.adapter_width(self.weights) if linears.is_frozen else 0
        low_ranks = kept.element * self.sizes.tokens * adapters
        return attention + self.attention.core_bytes(kept) + self.mlp_bytes(kept) + low_ranks

    def weight_gradient_bytes(self, kept: Kept) -> Number:
        """What a backward pass without weight gradients leaves for those (zero-bubble)."""
        return self.attention.weight_gradient_bytes(kept) + self.mlp.weight_gradient_bytes(kept)


def _shared(syncs: int, first: tuple[str, ...], second: str) -> tuple[tuple[str, ...], ...]:
    """Products before attention and before the MLP (none: ""), which have a collective each, or share one, or none."""
    roles = [*first, *([second] if second else [])]
    return (first, (second,)) if syncs > 1 else (tuple(roles),) if syncs else ()


def _two(pairs: list[Beside], none: Beside) -> tuple[Beside, ...]:
    return (*pairs, *[none] * (2 - len(pairs)))
