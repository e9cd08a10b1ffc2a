"""What runs once per update, over the parameters of a stage."""

from kernelcast.runtime.operators.operator import Direction, Operator, OperatorClass, cost, only_role, roles

# Fused Adam reads parameter, gradient and both moments and writes all but the gradient. The paper's vector is
# [mp, d, encoders]; parameters follow from it, and also hold for other vocabularies and MLP widths.
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
