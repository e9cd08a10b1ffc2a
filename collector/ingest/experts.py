"""Operators of a mixture of experts: grouped products, rows sorted by expert, routers; torch's and TransformerEngine's.

TransformerEngine's are functions of autograd written in Python, recorded by their class with the shapes of tensors
alone: what is given as a number (how many rows go to an expert) is not there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kernelcast.collector.ingest.points import OTHER_SHAPE, Found, Point, Shapes, Unclear

GROUPED_MM = "aten::_grouped_mm"
TOP_K = "aten::topk"
DEEP_EP = Unclear(
    "DeepEP's dispatch or combine: a token is sent once to each device, not once for each of its experts"
)
BOTH_GRADIENTS = Unclear("both gradients of a grouped product together, which the table has apart")
_NO_COPIES = Unclear("how many experts a token goes to was not recorded")
_PART_OF_ROUTER = Unclear("the choice of the largest entries: of a router a part")


@dataclass(frozen=True, slots=True)
class OfExperts:
    """What occurs in a trace: `grouped` products [k, n], `chosen` entries by the shape of what they are chosen of, and
    the widths of `norms`.
    """

    grouped: frozenset[tuple[int, int]] = frozenset()
    chosen: Mapping[tuple[int, ...], int] = field(default_factory=dict)
    norms: frozenset[int] = frozenset()

    def role(self, k: int, n: int) -> str:
        """Up from the width of a norm, or back down to it; "" where both are, or neither is."""
        if (k in self.norms) == (n in self.norms):
            return ""
        if n in self.norms:
            return "experts_down"
        return (
            "experts_up"
            if (n, k) in self.grouped
            else "experts_gate_up"
            if (n // 2, k) in self.grouped
            else ""
        )


def grouped_shape(name: str, dims: Shapes) -> tuple[int, int, int, int] | None:
    """Groups, rows of all of them, k and n of a forward product; None where it is none of known shapes."""
    if name == GROUPED_MM:
        left, right = (*dims, (), ())[:2]
        return (
            (right[0], left[0], *right[1:])
            if len(left) == 2 and len(right) == 3 and left[1] == right[1]
            else None
        )
    rows, *others = dims
    # A weight [n, k] for every group, then the biases.
    weights = [shape for shape in others if len(shape) == 2]
    if len(rows) < 2 or not weights or len(set(weights)) > 1 or weights[0][1] != rows[-1]:
        return None
    tokens = 1
    for size in rows[:-1]:
        tokens *= size
    return len(weights), tokens, rows[-1], weights[0][0]


def is_weight_gradient(dims: Shapes) -> bool:
    """Whether a grouped product is that of weights' gradients: of two matrices, whose common rows are grouped."""
    return len(dims) > 1 and len(dims[0]) == len(dims[1]) == 2


def _grouped(name: str, dims: Shapes, around: OfExperts) -> Found:
    found = grouped_shape(name, dims)
    if found is None or not all(found):
        return OTHER_SHAPE
    groups, rows, k, n = found
    return Point("grouped_gemm", "", (groups, max(1, round(rows / groups)), k, n), around.role(k, n))


def _permuted_by_index(name: str, dims: Shapes, around: OfExperts) -> Found:
    """[tokens, d], and the experts of each token."""
    if len(dims) < 2 or len(dims[0]) != 2 or len(dims[1]) != 2 or dims[0][0] != dims[1][0]:
        return OTHER_SHAPE
    return Point("permute", "", (dims[0][0], dims[1][1], dims[0][1]))


def _permuted_by_mask(name: str, dims: Shapes, around: OfExperts) -> Found:
    """[tokens, d], and a column for every expert; how many a token goes to is known from the router's choice."""
    if len(dims) < 2 or len(dims[0]) != 2 or len(dims[1]) != 2 or dims[0][0] != dims[1][0]:
        return OTHER_SHAPE
    copies = around.chosen.get(dims[1])
    return Point("permute", "", (dims[0][0], copies, dims[0][1])) if copies else _NO_COPIES


def _sorted_again(name: str, dims: Shapes, around: OfExperts) -> Found:
    return Point("permute", "", (dims[0][0], 1, dims[0][1])) if len(dims[0]) == 2 else OTHER_SHAPE


def _unpermuted(name: str, dims: Shapes, around: OfExperts) -> Found:
    """[rows, d], their places, and probabilities with a row per token, by which the copies of a token are known."""
    if len(dims[0]) != 2:
        return OTHER_SHAPE
    rows, d = dims[0]
    probabilities = next((shape for shape in dims[2:] if len(shape) == 2), None)
    if probabilities is None:
        return _NO_COPIES
    copies, rest = divmod(rows, max(1, probabilities[0]))
    return Point("unpermute", "", (probabilities[0], copies, d)) if copies and not rest else _NO_COPIES


def _router(name: str, dims: Shapes, around: OfExperts) -> Found:
    return Point("router", "", dims[0]) if len(dims[0]) == 2 else OTHER_SHAPE


RULES: Mapping[str, Callable[[str, Shapes, OfExperts], Found]] = {
    GROUPED_MM: _grouped,
    "_GroupedLinear": _grouped,
    "_moe_permute_index_map": _permuted_by_index,
    "_moe_permute_mask_map": _permuted_by_mask,
    "_moe_unpermute_index_map": _unpermuted,
    "_moe_unpermute_mask_map": _unpermuted,
    "_moe_chunk_sort": _sorted_again,
    "FusedTopkScoreFunction": _router,
    TOP_K: lambda *_: _PART_OF_ROUTER,
}
"""By the name of a call."""


def of_experts(calls: Iterable[tuple[str, Shapes, Sequence[str]]], norms: set[int]) -> OfExperts:
    """From the forward calls of a trace: name, shapes and numbers among the inputs of each."""
    grouped: set[tuple[int, int]] = set()
    chosen: dict[tuple[int, ...], int] = {}
    for name, dims, numbers in calls:
        if name == TOP_K:
            if (
                dims
                and len(dims[0]) == 2
                and len(numbers) > 1
                and numbers[1].isdecimal()
                and len(numbers[1]) < 6
            ):
                chosen[dims[0]] = int(numbers[1])
        elif dims and RULES.get(name) is _grouped and (found := grouped_shape(name, dims)) is not None:
            grouped.add(found[2:])
    return OfExperts(frozenset(grouped), chosen, frozenset(norms))
