"""LayerNorm and RMSNorm."""

from kernelcast.runtime.step.calls import Calls, call
from kernelcast.runtime.step.layers.sizes import Kept, Layer, Number

STATISTIC_BYTES = 4
"""Norms and flash attention keep their statistics in fp32."""


class Norm(Layer):
    """One norm over the hidden size: weight, and with LayerNorm a bias, whole on every device."""

    __slots__ = ()

    @property
    def has_bias(self) -> bool:
        """Whether it has a bias: LayerNorm does, RMSNorm does not."""
        return self.sizes.model.norm == "layer_norm"

    @property
    def calls(self) -> Calls:
        s = self.sizes
        return (call(s.model.norm, s.micro_batch, s.local_length, s.hidden),)

    @property
    def parameters(self) -> Number:
        """2d for LayerNorm (weight and bias), d for RMSNorm."""
        return (2 if self.has_bias else 1) * self.sizes.hidden

    def kept_bytes(self, kept: Kept) -> Number:
        """Statistics in fp32 (LayerNorm: mean and deviation; RMSNorm has one), and its output for the next product.

        On a CPU an RMSNorm also keeps its input divided by the root mean square, and its input, in fp32; the input in
        fp32 is a copy unless it is fp32 already.
        """
        entries = self.sizes.local_tokens * self.sizes.hidden
        statistics = self.sizes.local_tokens * STATISTIC_BYTES * (2 if self.has_bias else 1)
        normalised = 0
        if kept.is_cpu and not self.has_bias:
            normalised = (4 if kept.element == 4 else 8) * entries
        return statistics + kept.element * entries + normalised
