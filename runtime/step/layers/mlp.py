"""The MLP: column-parallel projection up, activation, row-parallel projection down.

A gated one (SwiGLU, GeGLU) projects to gate and up halves by one product, and multiplies them in its activation.
"""

from typing import Any

from kernelcast.runtime.operators import Direction
from kernelcast.runtime.step.layers.linear import bias, dropout, linear
from kernelcast.runtime.step.op import Number, Ops, op
from kernelcast.runtime.step.sizes import FLOAT8_BYTES, Sizes


def has_bias(s: Sizes) -> bool:
    """Whether its projections have biases."""
    return s.model.biases in ("all", "mlp")


def activation_operator(s: Sizes) -> str:
    """The operator of its activation; both gated ones move the same, and so do both others."""
    if not s.is_gated:
        return "gelu"
    return "swiglu" if s.eager == "none" else "eager_swiglu"


def up_product(s: Sizes) -> str:
    """The name of its column-parallel product."""
    return "mlp_gate_up" if s.is_gated else "mlp_up"


DOWN = "mlp_down"


def mlp(s: Sizes) -> Ops:
    """The MLP of one layer, f its width, β = 1 with biases, else 0. Parameters: GeLU f(d + β)/tp + d(f + β)/tp, SwiGLU
    f(d + β)/tp more. Kept per token: GeLU 2f; SwiGLU gate and up, gate after SiLU, product (4f), a fused one 3f.
    """
    element, width, rows = s.element_bytes, s.mlp_width, s.tokens
    up_width, shape = s.branches * width, (s.micro_batch, s.length, width)
    of_up: dict[str, Any] = {"columns": (width,) * s.branches, "gathers": Direction.FORWARD, "module": "mlp"}
    of_up["late"] = element * (s.local_tokens * s.hidden + rows * up_width)
    of_down: dict[str, Any] = {"gathers": Direction.BACKWARD, "keeps_input": True, "module": "mlp"}
    of_down["late"] = element * (rows * width + s.local_tokens * s.hidden)
    of_down["gradients"] = element * rows * width + weight_gradient_bytes(s, width * s.hidden)
    kept: dict[str, Any] = {"saves": (activated_bytes(s) + gate_bytes(s)) * rows * width, "needs": "input"}
    kept["gradients"] = s.branches * element * rows * width
    biased: dict[str, Any] = {"has": has_bias(s), "module": "mlp"}
    return (
        *linear(s, "mlp", up_product(s), rows, s.hidden, up_width, **of_up),
        bias(s, "mlp_up_bias", rows, up_width, parameters=up_width, **biased),
        op("mlp_activation", activation_operator(s), *shape, module="mlp", **kept),
        *linear(s, "mlp", DOWN, rows, width, s.hidden, **of_down),
        bias(s, "mlp_down_bias", s.local_tokens, s.hidden, parameters=s.hidden // s.tp, **biased),
        dropout(s, "mlp_dropout", module="mlp"),
    )


def activated_bytes(s: Sizes) -> int:
    """Bytes per token and column that an activation keeps of what it reads."""
    in_float8 = s.modules.fuses_gate and s.layout.fp8_activation_store
    return s.branches * (FLOAT8_BYTES if in_float8 else s.element_bytes)


def gate_bytes(s: Sizes) -> int:
    """Bytes per token and column of a gate after SiLU that is not fused, which an activation keeps too."""
    return 0 if s.modules.fuses_gate else s.element_bytes * int(s.is_gated)


def weight_gradient_bytes(s: Sizes, entries: Number) -> Number:
    """A weight's gradient that is made whole before it is added to the accumulated one."""
    accumulates = s.modules.accumulates_in_products or s.is_frozen
    return 0 if accumulates else s.element_bytes * entries
