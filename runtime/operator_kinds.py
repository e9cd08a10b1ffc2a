"""Rows of the operator table that many operators share the form of: linears, elementwise operators, collectives."""

from collections.abc import Callable, Mapping

from kernelcast.runtime.operator_row import Direction, Operator, OperatorClass, cost
from kernelcast.runtime.shape import Shape

_F, _B, _1 = Direction.FORWARD, Direction.BACKWARD, Direction.ONCE
_GEMM = {"m": "rows", "k": "columns in", "n": "columns out"}
_LAYOUT = {"entries": "elements", "nodes": "nodes", "gpus_per_node": "devices"}


def linear(name: str, paper_name: str, title: str, workload: Callable[[Shape], tuple[int, ...]]) -> Operator:
    """One GEMM [m, k, n], without the bias."""
    # Backward is two products (input and weight gradient), and the weight gradient is added to what is there.
    return Operator(
        name=name,
        paper_name=paper_name,
        title=title,
        operator_class=OperatorClass.COMPUTE,
        features=_GEMM,
        workload_of=workload,
        costs={
            _F: cost(flops="2 m k n", elements="1 m k + 1 k n + 1 m n"),
            _B: cost(flops="4 m k n", elements="2 m k + 4 k n + 2 m n"),
        },
    )


def elementwise(
    name: str,
    paper_name: str,
    title: str,
    features: Mapping[str, str],
    workload: Callable[[Shape], tuple[int, ...]],
    *,
    forward: tuple[float, float] | None,
    backward: tuple[float, float],
    supplementary: bool = False,
) -> Operator:
    """Memory-bound row whose (FLOPs, elements) per direction are multiples of the product of its features.

    `forward` None says that the forward pass runs no kernel.
    """
    product = " ".join(features)
    costs = {
        direction: cost(flops=f"{multiples[0]} {product}", elements=f"{multiples[1]} {product}")
        for direction, multiples in ((_F, forward), (_B, backward))
        if multiples is not None
    }
    return Operator(
        name=name,
        paper_name=paper_name,
        title=title,
        operator_class=OperatorClass.MEMORY,
        features=features,
        workload_of=workload,
        costs=costs,
        supplementary=supplementary,
    )


def collective(
    name: str,
    paper_name: str,
    title: str,
    collective: str,
    entries: Callable[[Shape], int],
    elements: str,
    *,
    supplementary: bool = False,
) -> Operator:
    """One collective over [entries, nodes, gpus_per_node]."""
    return Operator(
        name=name,
        paper_name=paper_name,
        title=title,
        operator_class=OperatorClass.COMMUNICATION,
        features=_LAYOUT,
        workload_of=lambda s: (entries(s), s.nodes, s.gpus_per_node),
        costs={_1: cost(flops="", elements=elements)},
        collective=collective,
        supplementary=supplementary,
    )


def optimizer(role: str) -> Operator:
    """The optimizer's step over one of the stages."""
    # Fused Adam reads parameter, gradient and both moments and writes all but the gradient. The paper's vector is
    # [tp, d, layers]; parameters follow from it, and also hold for other vocabularies and MLP widths.
    return Operator(
        name=f"optimizer_{role}_stage",
        paper_name="Optimizer",
        title=f"fused Adam step over the parameters of the {role} stage",
        operator_class=OperatorClass.OPTIMIZER,
        features={"parameters": "elements", "layers": "layers"},
        workload_of=lambda s: (s.stage_parameters, s.stage_layers),
        costs={_1: cost(flops="14 parameters", elements="7 parameters")},
    )
