"""Self-attention: QKV projection, rotary embedding, what lies between queries and output, output projection."""

from kernelcast.runtime.operators import Direction
from kernelcast.runtime.step.calls import Beside, Calls, call
from kernelcast.runtime.step.layers.attention_core import exchanged, exchanged_back, fused_core, ring
from kernelcast.runtime.step.layers.linear import Matrix
from kernelcast.runtime.step.layers.norm import STATISTIC_BYTES
from kernelcast.runtime.step.layers.sizes import Kept, Layer, Number


class Attention(Layer):
    """Attention of one layer: column-parallel QKV projection, its heads, row-parallel output projection."""

    __slots__ = ()

    @property
    def has_qkv_bias(self) -> bool:
        """Whether the QKV projection has a bias."""
        return self.sizes.model.biases in ("all", "attention", "qkv")

    @property
    def has_output_bias(self) -> bool:
        """Whether the output projection has a bias; it is added to the summed product."""
        return self.sizes.model.biases in ("all", "attention")

    @property
    def is_fused(self) -> bool:
        """Whether scores stay inside one kernel."""
        return self.sizes.model.attention == "flash"

    @property
    def up_roles(self) -> tuple[str, ...]:
        """Roles of its column-parallel products, which read the same input."""
        return ("qkv",)

    @property
    def calls(self) -> Calls:
        s = self.sizes
        return (
            *self._projections,
            *self._normed_heads,
            *self._rotation,
            *self.core_calls,
            *s.linears.calls("attention", s.tokens, s.attention_width, s.hidden, role="attention_output"),
            s.linears.bias(s.local_tokens, s.hidden, count=int(self.has_output_bias)),
            call("dropout", s.local_tokens, s.hidden, count=s.drops),
        )

    @property
    def _projections(self) -> Calls:
        s = self.sizes
        return (
            *s.linears.calls("attention", s.tokens, s.hidden, s.qkv_width, role="qkv"),
            s.linears.bias(s.tokens, s.qkv_width, count=int(self.has_qkv_bias)),
            call("qkv_split", s.tokens, s.qkv_width),
        )

    @property
    def _normed_heads(self) -> Calls:
        """Norms of every query and key head."""
        s, count = self.sizes, int(self.sizes.model.qk_norm)
        heads = (s.heads, s.kv_heads)
        return tuple(
            call(s.model.norm, s.micro_batch, s.length * own, s.model.head_size, count=count)
            for own in heads
            if count
        )

    @property
    def _rotation(self) -> Calls:
        s, model = self.sizes, self.sizes.model
        sizes = (s.micro_batch, s.length, s.heads, s.kv_heads, model.rotated_size)
        return (call("rope", *sizes, count=int(s.rotates)),)

    @property
    def core_calls(self) -> Calls:
        """What lies between queries and attention output: what selective recomputation runs again.

        A fused kernel drops out inside.
        """
        s, model = self.sizes, self.sizes.model
        if self.is_fused:
            return fused_core(s)
        batch, length = s.micro_batch * s.heads, s.length
        softmax = (
            (call("fused_causal_softmax", batch, length, length),)
            if model.attention == "fused_softmax"
            else (
                call("causal_mask_fill", s.micro_batch, s.heads, length, length),
                call("softmax", s.micro_batch, s.heads, length, length),
            )
        )
        return (
            call("batched_gemm", batch, length, model.head_size, length, role="attention_scores"),
            *softmax,
            call("dropout", s.tokens, s.heads * length, count=s.drops),
            call("batched_gemm", batch, length, length, model.head_size, role="attention_values"),
        )

    @property
    def forward_collectives(self) -> Calls:
        return exchanged(self.sizes)

    @property
    def backward_collectives(self) -> Calls:
        return exchanged_back(self.sizes)

    @property
    def beside_forward(self) -> tuple[Beside, ...]:
        return ring(self.sizes, Direction.FORWARD)

    @property
    def beside_backward(self) -> tuple[Beside, ...]:
        return ring(self.sizes, Direction.BACKWARD)

    @property
    def parameters(self) -> Number:
        """(a + 2k)(d + β)/tp for queries, keys and values, d(a + β)/tp for the output; β = 1 with a bias, else 0.

        a = h · head size, k = h_kv · head size. Biases are divided by tp as Table III prints them. Sinks are h/tp more.
        """
        s, model = self.sizes, self.sizes.model
        width, kv_width = model.attention_heads * model.head_size, model.kv_heads * model.head_size
        qkv = (width + 2 * kv_width) * (s.hidden + self.has_qkv_bias) // s.tp
        # With qk_norm, norms of heads are whole on every device.
        qkv = qkv + (2 * model.head_size if model.qk_norm else 0)
        sinks = s.heads if model.attention_sinks else 0
        return qkv + sinks + s.hidden * (width + self.has_output_bias) // s.tp

    def kept_bytes(self, kept: Kept) -> Number:
        """Everything but the core: what leads to the scores, the attention output, the mask of its dropout."""
        s = self.sizes
        own = kept.element * (self._inputs_width(kept) + s.attention_width)
        # The attention output is a fused core's too.
        own = own + s.linears.copy_bytes("attention") * s.attention_width
        return kept.mask * s.local_tokens * s.hidden + s.tokens * own

    @property
    def weights(self) -> tuple[Matrix, ...]:
        s = self.sizes
        return Matrix("attention", s.hidden, s.qkv_width), Matrix("attention", s.attention_width, s.hidden)

    def _inputs_width(self, kept: Kept) -> Number:
        """Entries per token of the tensors from the QKV product to the scores.

        Rotated queries and keys are tensors of their own; the values, where they are a view, keep the whole QKV product
        too.
        """
        s, model = self.sizes, self.sizes.model
        repeats = not self.is_fused and model.kv_heads < model.attention_heads
        if kept.modules.copies_attention_inputs:
            return 3 * s.attention_width if repeats else s.qkv_width
        if repeats:
            # Copies of keys and values; queries that were not rotated are a view of the QKV product.
            return 2 * s.attention_width + (s.attention_width if s.rotates else s.qkv_width)
        return s.qkv_width + (s.attention_width + s.kv_width if s.rotates else 0)

    def core_bytes(self, kept: Kept) -> Number:
        """What is kept between queries and output: flash keeps log-sum-exp (fp32), else the weights and their mask."""
        s = self.sizes
        if self.is_fused:
            return s.tokens * STATISTIC_BYTES * s.heads
        scores = s.tokens * s.heads * s.length
        # Dropped weights are a tensor of their own.
        return scores * (2 * kept.element + kept.mask if kept.mask else kept.element)

    def weight_gradient_bytes(self, kept: Kept) -> Number:
        """What a backward pass leaves for late weight gradients: every product's input and output gradient."""
        s = self.sizes
        return kept.element * (2 * s.local_tokens * s.hidden + s.tokens * (s.qkv_width + s.attention_width))

    def gradient_bytes(self, kept: Kept) -> Number:
        """Gradients at the fullest moment of its backward pass: the output's, and twice the scores where they exist."""
        s = self.sizes
        if self.is_fused:
            return kept.element * s.tokens * (s.attention_width + s.qkv_width)
        return kept.element * s.tokens * (2 * s.heads * s.length + s.attention_width)

    @property
    def buffer_bytes(self) -> int:
        """Rotary tables in fp32, and the unfused softmax's mask."""
        model = self.sizes.model
        tables = 2 * 4 * model.sequence_length * model.head_size if model.rotary else 0
        return tables + (model.sequence_length**2 if model.attention == "unfused" else 0)
