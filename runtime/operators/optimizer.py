"""What runs once per update, over the parameters of a stage."""

from kernelcast.runtime.operators.operator import (
    Direction,
    Operator,
    OperatorClass,
    Substitute,
    cost,
    only_role,
    roles,
)

# Fused Adam reads parameter, gradient and both moments and writes all but the gradient. The paper's vector is
# [mp, d, encoders]; parameters follow from it, and also hold for other vocabularies and MLP widths. With 16-bit
# weights and gradients, masters and moments are in fp32: gradient in (2), master and both moments in and out (24),
# weight out (2), 28 bytes per parameter, the same as with everything in fp32 (7 · 4); gradients in fp32 make it 30.
ADAM = Operator(
    name="adam",
    title="fused Adam step over the parameters of a stage",
    operator_class=OperatorClass.OPTIMIZER,
    features={"parameters": "elements", "layers": "layers"},
    costs={Direction.ONCE: cost(flops="14 parameters", elements="7 parameters")},
    roles=roles(
        ("first_stage", "Optimizer", "fused Adam step over the first stage"),
        ("middle_stage", "Optimizer", "fused Adam step over a middle stage"),
        ("last_stage", "Optimizer", "fused Adam step over the last stage"),
    ),
    per_update=True,
    fewest_entry_bytes=4,
    substitute=Substitute(operator="residual_add", alike=True),
)


def _on_gradients(
    name: str, title: str, *, flops: str = "", elements: str, least: str | None = None
) -> Operator:
    return Operator(
        name=name,
        title=title,
        operator_class=OperatorClass.OPTIMIZER,
        features={"parameters": "elements"},
        costs={Direction.ONCE: cost(flops=flops, elements=elements, least=least)},
        roles=only_role("", title),
        per_update=True,
        is_optional=True,
        substitute=Substitute(operator="residual_add", alike=True),
    )


GRADIENT_ZERO = _on_gradients(
    "gradient_zero",
    "gradients of a stage set to zero before its first micro-batch",
    elements="1 parameters",
)
GRADIENT_CLIP = _on_gradients(
    "gradient_clip",
    "L2 norm of a stage's gradients, which are then scaled",
    flops="3 parameters",
    elements="3 parameters",
    least="1 parameters",  # scaled only where the norm is too large
)
GRADIENT_SCALE = _on_gradients(
    "gradient_scale",
    "gradients of a stage searched for what is no number, and divided by the replicas before they are summed",
    flops="3 parameters",
    elements="3 parameters",
    least="2 parameters",
)
