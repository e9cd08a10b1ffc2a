"""Calls of a mixture of experts: grouped products, permutations of rows, routers; torch's and TransformerEngine's.

TransformerEngine's calls are Python functions of autograd. The profiler records them by class name with the shapes of
their tensors; arguments that are numbers, such as the rows per expert, are missing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from kernelcast.collector.ingest.recognised_calls import (
    OTHER_SHAPE,
    RecognisedCall,
    Recognition,
    Shape,
    Shapes,
    Unrecognised,
)

GROUPED_MM = "aten::_grouped_mm"
TOP_K = "aten::topk"
DEEP_EP = Unrecognised(
    "DeepEP's dispatch or combine: a token is sent once to each device, not once for each of its experts"
)
BOTH_GRADIENTS = Unrecognised("both gradients of a grouped product together, which the table has apart")
_NO_COPIES = Unrecognised("how many experts a token goes to was not recorded")
_PART_OF_ROUTER = Unrecognised("the choice of the largest entries: a part of a router")


@dataclass(frozen=True, slots=True)
class ExpertCalls:
    """Facts from the whole trace: `grouped` products [k, n], the number of entries `chosen` from a shape, and the
    widths of `norms`.
    """

    grouped: frozenset[tuple[int, int]] = frozenset()
    chosen: Mapping[Shape, int] = field(default_factory=dict)
    norms: frozenset[int] = frozenset()

    def role(self, k: int, n: int) -> str:
        """Up from the width of a norm, or down to it; empty where both or neither are such a width."""
        if (k in self.norms) == (n in self.norms):
            return ""
        if n in self.norms:
            return "experts_down"
        if (n, k) in self.grouped:
            return "experts_up"
        return "experts_gate_up" if (n // 2, k) in self.grouped else ""


def grouped_shape(name: str, dims: Shapes) -> tuple[int, int, int, int] | None:
    """Groups, total rows, k and n of a forward product; None where its shapes are unknown."""
    if name == GROUPED_MM:
        left, right = (*dims, (), ())[:2]
        is_product = len(left) == 2 and len(right) == 3 and left[1] == right[1]
        return (right[0], left[0], right[1], right[2]) if is_product else None
    rows, *others = dims
    # A weight [n, k] for every group, then the biases.
    weights = [shape for shape in others if len(shape) == 2]
    if len(rows) < 2 or not weights or len(set(weights)) > 1 or weights[0][1] != rows[-1]:
        return None
    return len(weights), prod(rows[:-1]), rows[-1], weights[0][0]


def is_weight_gradient(dims: Shapes) -> bool:
    """Whether a grouped product is a weight gradient: a product of two matrices whose common rows are grouped."""
    return len(dims) > 1 and len(dims[0]) == len(dims[1]) == 2


def _grouped(name: str, dims: Shapes, around: ExpertCalls) -> Recognition:
    found = grouped_shape(name, dims)
    if found is None or not all(found):
        return OTHER_SHAPE
    groups, rows, k, n = found
    return RecognisedCall("grouped_gemm", (groups, max(1, round(rows / groups)), k, n), around.role(k, n))


def _permuted(name: str, dims: Shapes, around: ExpertCalls) -> Recognition:
    """[tokens, d], and an index [tokens, experts per token] or a mask [tokens, experts].

    With a mask, the router's choice gives the experts per token.
    """
    if not is_weight_gradient(dims) or dims[0][0] != dims[1][0]:
        return OTHER_SHAPE
    copies = dims[1][1] if "index" in name else around.chosen.get(dims[1])
    return RecognisedCall("permute", (dims[0][0], copies, dims[0][1])) if copies else _NO_COPIES


def _sorted_again(name: str, dims: Shapes, around: ExpertCalls) -> Recognition:
    return RecognisedCall("permute", (dims[0][0], 1, dims[0][1])) if len(dims[0]) == 2 else OTHER_SHAPE


def _unpermuted(name: str, dims: Shapes, around: ExpertCalls) -> Recognition:
    """[rows, d], their positions, and probabilities with a row per token, which give the copies of a token."""
    if len(dims[0]) != 2:
        return OTHER_SHAPE
    rows, d = dims[0]
    probabilities = next((shape for shape in dims[2:] if len(shape) == 2), None)
    if probabilities is None:
        return _NO_COPIES
    copies, rest = divmod(rows, max(1, probabilities[0]))
    return RecognisedCall("unpermute", (probabilities[0], copies, d)) if copies and not rest else _NO_COPIES


def _router(name: str, dims: Shapes, around: ExpertCalls) -> Recognition:
    return RecognisedCall("router", dims[0]) if len(dims[0]) == 2 else OTHER_SHAPE


RULES: Mapping[str, Callable[[str, Shapes, ExpertCalls], Recognition]] = {
    GROUPED_MM: _grouped,
    "_GroupedLinear": _grouped,
    "_moe_permute_index_map": _permuted,
    "_moe_permute_mask_map": _permuted,
    "_moe_unpermute_index_map": _unpermuted,
    "_moe_unpermute_mask_map": _unpermuted,
    "_moe_chunk_sort": _sorted_again,
    "FusedTopkScoreFunction": _router,
    TOP_K: lambda *_: _PART_OF_ROUTER,
}
"""Rules by the name of a call."""


def is_grouped(name: str) -> bool:
    """Whether a call of this name is a product of experts."""
    return RULES.get(name) is _grouped


def expert_calls(calls: Iterable[tuple[str, Shapes, Sequence[str]]], norms: set[int]) -> ExpertCalls:
    """Collect the facts from the forward calls of a trace: name, shapes and concrete inputs of each."""
    grouped: set[tuple[int, int]] = set()
    chosen: dict[Shape, int] = {}
    for name, dims, concrete in calls:
        if name == TOP_K:
            number = concrete[1] if len(concrete) > 1 else ""
            if dims and len(dims[0]) == 2 and number.isdecimal() and len(number) < 6:
                chosen[dims[0]] = int(number)
        elif dims and is_grouped(name) and (found := grouped_shape(name, dims)) is not None:
            grouped.add(found[2:])
    return ExpertCalls(frozenset(grouped), chosen, frozenset(norms))
