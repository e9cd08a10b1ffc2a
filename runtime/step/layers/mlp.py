"""The MLP. Whether it is gated (SwiGLU, GeGLU) is decided here, in `Mlp.is_gated`."""

from itertools import takewhile

from kernelcast.runtime.request.fields import LinearKind
from kernelcast.runtime.step.calls import Calls, call
from kernelcast.runtime.step.layers.linear import Matrix
from kernelcast.runtime.step.layers.sizes import Kept, Layer, Number


class Mlp(Layer):
    """The MLP of one layer: column-parallel projection up, activation, row-parallel projection down.

    A gated one (SwiGLU) projects to gate and up halves by one product, and multiplies them in its activation.
    """

    __slots__ = ()

    @property
    def is_gated(self) -> bool:
        """Whether it has a gate: SwiGLU or GeGLU."""
        return self.sizes.model.activation != "gelu"

    @property
    def activation_operator(self) -> str:
        """The operator of its activation; both gated ones move the same."""
        return "swiglu" if self.is_gated else "gelu"

    @property
    def branches(self) -> int:
        """Products of the MLP's width that the projection up makes: gate and up, or up alone."""
        return 2 if self.is_gated else 1

    @property
    def up_role(self) -> str:
        return "mlp_gate_up" if self.is_gated else "mlp_up"

    @property
    def down_role(self) -> str:
        return "mlp_down"

    @property
    def has_bias(self) -> bool:
        """Whether its projections have biases."""
        return self.sizes.model.biases in ("all", "mlp")

    @property
    def calls(self) -> Calls:
        s, up_width = self.sizes, self.branches * self.sizes.mlp_width
        biases = int(self.has_bias)
        return (
            *s.linears.calls("mlp", s.tokens, s.hidden, up_width, role=self.up_role),
            s.linears.bias(s.tokens, up_width, count=biases),
            call(self.activation_operator, s.micro_batch, s.length, s.mlp_width),
            *s.linears.calls("mlp", s.tokens, s.mlp_width, s.hidden, role="mlp_down"),
            s.linears.bias(s.local_tokens, s.hidden, count=biases),
            call("dropout", s.local_tokens, s.hidden, count=s.drops),
        )

    @property
    def until_last_kept(self) -> Calls:
        """Calls up to the last tensor that its backward pass needs: what is projected down, or a dropout's mask."""
        if self.sizes.drops:
            return self.calls
        return tuple(takewhile(lambda one: one.role != "mlp_down", self.calls))

    @property
    def dense_parameters(self) -> Number:
        """Those that all replicas hold: all."""
        return self.parameters

    @property
    def expert_parameters(self) -> Number:
        """Those that expert parallelism spreads: none."""
        return 0 * self.sizes.tp

    @property
    def parameters(self) -> Number:
        """GeLU f(d + β)/tp + d(f + β)/tp, SwiGLU 2f(d + β)/tp + d(f + β)/tp; β = 1 with biases, else 0 (Table III)."""
        s, width = self.sizes, self.sizes.model.mlp_size
        up = self.branches * width * (s.hidden + self.has_bias) // s.tp
        return up + s.hidden * (width + self.has_bias) // s.tp

    def kept_bytes(self, kept: Kept) -> Number:
        """GeLU: input and output (2f); SwiGLU: gate and up, gate after SiLU, their product (4f); a dropout's mask.

        Fused, SwiGLU's gate after SiLU is not kept (3f).
        """
        s = self.sizes
        after_silu = self.is_gated and not kept.modules.fuses_gate
        activated = kept.element * (self.branches + after_silu) + s.linears.input_bytes("mlp", kept.element)
        return kept.mask * s.local_tokens * s.hidden + s.tokens * activated * s.mlp_width

    def weight_gradient_bytes(self, kept: Kept) -> Number:
        """What a backward pass leaves for late weight gradients: every product's input and output gradient."""
        s = self.sizes
        widths = (self.branches + 1) * s.mlp_width
        return kept.element * (2 * s.local_tokens * s.hidden + s.tokens * widths)

    @property
    def weights(self) -> tuple[Matrix, ...]:
        s = self.sizes
        return Matrix("mlp", s.hidden, self.branches * s.mlp_width), Matrix("mlp", s.mlp_width, s.hidden)

    @property
    def exchanges(self) -> Calls:
        """What is exchanged with other devices' experts in either pass: nothing."""
        return ()

    @property
    def input_kind(self) -> LinearKind | None:
        """The linears that alone read its norm's output; None where others do too."""
        return "mlp"

    def gradient_bytes(self, kept: Kept) -> tuple[Number, Number]:
        """Gradients at the two moments of its backward pass that can be the fullest, without that of its output.

        First those of the projection down: of its input, and of its weights where they are made apart. Then those of
        the activation: of its output and its inputs, when the output is freed (in all f more, with SwiGLU 2f).
        """
        s = self.sizes
        width = kept.element * s.tokens * s.mlp_width
        no_gradient = kept.modules.accumulates_in_products or s.linears.is_frozen
        of_weights = 0 if no_gradient else kept.element * s.mlp_width * s.hidden
        return width + of_weights, self.branches * width
