"""LayerNorm and RMSNorm."""

from collections.abc import Mapping
from typing import Any, Literal

from kernelcast.runtime.request.fields import LinearKind, RecomputeModule
from kernelcast.runtime.step.op import Number, Op, op
from kernelcast.runtime.step.sizes import Sizes

STATISTIC_BYTES = 4
"""Norms and flash attention keep their statistics in fp32."""


_FIRST: Mapping[LinearKind, str] = {"attention": "qkv", "mlp": "mlp_gate_up"}
"""The products that read a norm's output."""


def read_bytes(s: Sizes, read_by: LinearKind | None = None) -> Number:
    """Bytes of a norm's output as the next products keep it: as it was gathered along the sequence, or a shard."""
    rows = s.tokens if s.modules.keeps_gathered else s.local_tokens
    return (s.element_bytes if read_by is None else s.input_bytes(read_by, _FIRST[read_by])) * rows * s.hidden


def norm_operator(s: Sizes) -> str:
    """The operator of its norms; PyTorch's LayerNorm is one kernel, an RMSNorm without a compiler several."""
    is_eager = s.eager == "all" and s.model.norm == "rms_norm"
    return "eager_rms_norm" if is_eager else s.model.norm


def norm(
    s: Sizes,
    name: str,
    *,
    read_by: LinearKind | None = None,
    module: RecomputeModule | Literal[""] = "layernorm",
) -> Op:
    """One norm over the hidden size. Kept: statistics in fp32 (LayerNorm 2, RMSNorm 1), its output, in 8 bit where only
    such linears read it (`read_by`); `module` is the linear's that `fuses_norms`. On a CPU an RMSNorm keeps its input
    divided by the root mean square, and its input, in fp32.
    """
    is_rms = s.model.norm == "rms_norm"
    saves = STATISTIC_BYTES * (1 if is_rms else 2) * s.local_tokens + read_bytes(s, read_by)
    if s.is_cpu and is_rms:
        saves = saves + (4 if s.element_bytes == 4 else 8) * s.local_tokens * s.hidden
    # LayerNorm's weight and bias, or RMSNorm's weight; whole on every device.
    parameters = (1 if is_rms else 2) * s.hidden
    kept: dict[str, Any] = {"parameters": parameters, "saves": saves, "needs": "output", "module": module}
    return op(name, norm_operator(s), s.micro_batch, s.local_length, s.hidden, **kept)
