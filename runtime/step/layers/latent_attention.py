"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): low ranks instead of one QKV projection."""

from functools import partial

from kernelcast.runtime.step.calls import Call, Calls, call
from kernelcast.runtime.step.layers.attention import Attention
from kernelcast.runtime.step.layers.linear import Matrix
from kernelcast.runtime.step.layers.sizes import Kept, Number

_ROTATIONS = 7
"""Times that torch's operators read and write the rotated part: forward to order it by halves (1), to negate and turn
them (1.5), to multiply by cosines and sines (2), to add (1.5) and to put it back (1); backward they are 8.5."""


class LatentAttention(Attention):
    """Queries, and keys with values, each from a normalized low-rank vector; a part of a head is rotated.

    The projections to low ranks are whole on every device of a tensor-parallel group, as in Megatron-core.
    """

    __slots__ = ()

    @property
    def up_roles(self) -> tuple[str, ...]:
        return ("query_up" if self.sizes.model.query_rank else "qkv", "kv_up")

    @property
    def _up_width(self) -> Number:
        """Entries per token that the low rank of keys and values becomes: keys without the rotated part, and values."""
        model = self.sizes.model
        return self.sizes.heads * (model.head_size - model.rotated_size + model.value_size)

    @property
    def _down_width(self) -> int:
        return self.sizes.model.kv_rank + self.sizes.model.rotated_size

    @property
    def _projections(self) -> Calls:
        s, model = self.sizes, self.sizes.model

        def normed(rank: int) -> Call:
            return call(model.norm, s.micro_batch, s.local_length, rank)

        linear = partial(s.linears.calls, "attention")
        queries: Calls = linear(s.tokens, s.hidden, s.query_width, role="qkv")
        if model.query_rank:
            queries = (
                *linear(s.local_tokens, s.hidden, model.query_rank, role="query_down"),
                normed(model.query_rank),
                *linear(s.tokens, model.query_rank, s.query_width, role="query_up"),
            )
        return (
            *queries,
            *linear(s.local_tokens, s.hidden, self._down_width, role="kv_down"),
            normed(model.kv_rank),
            *linear(s.tokens, model.kv_rank, self._up_width, role="kv_up"),
            call("copy", s.tokens, self._copied_width),
        )

    @property
    def _copied_width(self) -> Number:
        """Entries per token that are read and written once, by torch's own operators.

        Heads of queries and keys are put together from the part that is rotated and the part that is not, values taken
        out of the product; backward, gradients are put together for both products. The kernel that rotates all at once
        is an experiment of Megatron-core: without it the rotated part is copied and multiplied seven times.
        """
        s, model = self.sizes, self.sizes.model
        rotated = s.heads * model.rotated_size
        return self._head_width - rotated // 2 + _ROTATIONS * int(s.rotates) * rotated

    @property
    def _normed_heads(self) -> Calls:
        return ()  # what `qk_norm` stands for is in the low ranks

    @property
    def _rotation(self) -> Calls:
        return ()  # part of the copies

    @property
    def parameters(self) -> Number:
        """d·r_q + r_q + r_q·h·s/tp (or d·h·s/tp), d(r + s_r) + r + r·h(s − s_r + s_v)/tp, h·s_v·d/tp."""
        s, model = self.sizes, self.sizes.model
        queries = s.hidden * s.query_width
        if model.query_rank:
            queries = model.query_rank * (s.hidden + 1 + s.query_width)
        keys = s.hidden * self._down_width + model.kv_rank * (1 + self._up_width)
        return queries + keys + s.attention_width * s.hidden

    @property
    def weights(self) -> tuple[Matrix, ...]:
        s, model = self.sizes, self.sizes.model
        rank = model.query_rank
        queries = [(s.hidden, rank), (rank, s.query_width)] if rank else [(s.hidden, s.query_width)]
        keys = [(s.hidden, self._down_width), (model.kv_rank, self._up_width)]
        return tuple(Matrix("attention", *one) for one in (*queries, *keys, (s.attention_width, s.hidden)))

    def kept_bytes(self, kept: Kept) -> Number:
        """The low ranks as their norms return them are read by a linear alone."""
        s, model = self.sizes, self.sizes.model
        own = s.linears.input_bytes("attention", kept.element) - kept.element
        return Attention.kept_bytes(self, kept) + own * s.tokens * (model.query_rank + model.kv_rank)

    @property
    def _low_rank_width(self) -> int:
        """Entries per token of the low ranks, before and after their norms."""
        model = self.sizes.model
        return 2 * model.query_rank + self._down_width + model.kv_rank

    @property
    def _head_width(self) -> Number:
        """Entries per token of queries, keys and values with all their heads."""
        s = self.sizes
        return 2 * s.query_width + s.attention_width

    def _inputs_width(self, kept: Kept) -> Number:
        return self._low_rank_width + self._head_width

    def weight_gradient_bytes(self, kept: Kept) -> Number:
        s = self.sizes
        widths = self._low_rank_width + self._head_width + s.attention_width
        return kept.element * (2 * s.local_tokens * s.hidden + s.tokens * widths)

    def gradient_bytes(self, kept: Kept) -> Number:
        s = self.sizes
        return kept.element * s.tokens * (s.attention_width + self._head_width)
