"""A framework's calls as operators of the table, with workload vectors from the shapes of their inputs."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from kernelcast.collector.ingest import experts
from kernelcast.collector.ingest.experts import ExpertCalls
from kernelcast.collector.ingest.kernel_columns import Rows, distinct
from kernelcast.collector.ingest.named_calls import BY_NAME, is_compiled, named_call, rows, scores
from kernelcast.collector.ingest.recognised_calls import (
    DTYPES,
    NO_OPERATOR,
    NO_SHAPES,
    NO_TYPE,
    OTHER_SHAPE,
    RecognisedCall,
    Recognition,
    Shapes,
    Unrecognised,
    factors,
)
from kernelcast.collector.traces.arguments import Arguments, shapes, texts
from kernelcast.collector.traces.call_tree import CallTree

_LEAST_MLP = 4  # an MLP, also a tensor-parallel slice, is wider than the hidden size divided by this
Width = tuple[int, int]
"""Columns in and columns out."""


@dataclass(frozen=True, slots=True)
class LinearRoles:
    """The roles of the products of one trace, by width."""

    by_width: dict[Width, str]

    @classmethod
    def of(cls, products: Iterable[Width], norm_widths: set[int], embeddings: set[Width]) -> "LinearRoles":
        """Roles from all forward products (or their counts), the norms' widths and the embeddings' [rows, width]."""
        widths = norm_widths & {d for _, d in embeddings} if norm_widths and embeddings else norm_widths
        widths = widths or {d for _, d in embeddings}
        if len(widths) != 1:
            return cls({})
        (d,) = widths
        vocabularies = {rows for rows, width in embeddings if width == d}
        counts = Counter(products)
        roles = {}
        out = {n: count for (k, n), count in counts.items() if k == d and n != d}
        back = {k: count for (k, n), count in counts.items() if n == d and k != d}
        for n in [n for n in out if n in vocabularies and n not in back]:
            roles[d, n] = "logits"
            del out[n]
        for n in list(out):
            if _LEAST_MLP * n <= d:
                del out[n]  # an adapter of low rank (LoRA), d → 16 → d
            elif back.get(n) == out[n]:
                roles[d, n], roles[n, d] = "mlp_up", "mlp_down"
                del out[n]
            elif n % 2 == 0 and back.get(n // 2) == out[n] and n // 2 not in out:
                roles[d, n], roles[n // 2, d] = "mlp_gate_up", "mlp_down"
                del out[n]
            elif n in back and out[n] == 2 * back[n]:  # gate and up apart
                roles[d, n], roles[n, d] = "mlp_gate_up", "mlp_down"
                del out[n]
        attention = [n for n in out if n not in back and d < n <= 3 * d and out[n] == counts[d, d]]
        if len(attention) == 1 and len(out) == 1:
            roles[d, attention[0]], roles[d, d] = "qkv", "attention_output"
        left = {k: count for k, count in back.items() if (k, d) not in roles and _LEAST_MLP * k > d}
        if len(out) == 1 and len(left) == 1 and not counts[d, d]:
            [(n, times)], [(width, as_often)] = out.items(), left.items()
            if times == as_often and width < n <= 3 * width:
                roles[d, n], roles[width, d] = "qkv", "attention_output"
        return cls(roles)


_ATTENTION: Width = (0, 0)


def _attention_roles(calls: Sequence[tuple[int, Width]]) -> Iterator[tuple[int, str]]:
    """Roles of forward products around attention, from the order of calls, whose width is `_ATTENTION` where it ran.

    The product after it is the output's; before it are queries, keys and values, apart or together.
    """
    for place in range(1, len(calls) - 1):
        output, (k, d) = calls[place + 1]
        if calls[place][1] != _ATTENTION or (k, d) == _ATTENTION:
            continue
        first = place
        while first and calls[first][1] == _ATTENTION:  # of several calls
            first -= 1
        inputs = list(calls[max(first - 2, 0) : first + 1])
        widths = [width for _, width in inputs]
        if (
            len(inputs) == 3
            and widths[0] == (d, k)
            and widths[1] == widths[2]
            and widths[1][0] == d
            and k % widths[1][1] == 0
        ):
            yield from ((call, "qkv") for call, _ in inputs)
        elif widths[-1][0] == d and k < widths[-1][1] <= 3 * k:
            yield inputs[-1][0], "qkv"
        else:
            continue
        yield output, "attention_output"


def _roles_in_order(
    tree: CallTree, rows: Rows, widths: Sequence[Width | None], alike: Rows
) -> Mapping[int, str]:
    """`_attention_roles` of the calls `rows` by thread, and of those that run again apart.

    `widths` and `alike`: of distinct calls, and which each is.
    """
    by_thread: dict[tuple[str, bool], list[tuple[int, Width]]] = defaultdict(list)
    for row, which in zip(rows.tolist(), alike.tolist(), strict=True):
        if (width := widths[which]) is not None:
            by_thread[tree.threads[row], tree.recomputed[row]].append((row, width))
    return dict(one for calls in by_thread.values() for one in _attention_roles(calls))


_OPTIMIZER = Unrecognised("an optimizer step: neither its stage nor its layers were recorded")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Facts from the whole trace that resolve ambiguous calls."""

    roles: LinearRoles
    softmaxes: frozenset[tuple[int, int, int]]  # heads of all samples, queries, keys
    widths: frozenset[int] = frozenset()  # of norms
    products: frozenset[tuple[int, int]] = frozenset()  # rows and columns of the results of products
    experts: ExpertCalls = field(default_factory=ExpertCalls)
    role_of: Mapping[int, str] = field(
        default_factory=dict
    )  # of calls, by their order; more specific than `widths`

    @classmethod
    def of(cls, tree: CallTree, sequences: Iterable[Recognition] = ()) -> "Surroundings":
        """Collect them from the forward calls of a trace, and from operators made of several calls."""
        products = Counter[Width]()
        results: set[tuple[int, int]] = set()
        norms = {
            one.vector[-1]
            for one in sequences
            if isinstance(one, RecognisedCall) and one.operator in ("rms_norm", "layer_norm")
        }
        embeddings: set[tuple[int, int]] = set()
        softmaxes: set[tuple[int, int, int]] = set()
        in_order: dict[int, Width] = {}  # by the first of equal calls
        of_mixture: dict[int, tuple[str, Shapes, Sequence[str]]] = {}
        is_wanted = tree.calls.where(lambda _, name: name in _OF_INTEREST or _is_norm(name))
        is_wanted &= np.array([node is None for node in tree.backward_nodes], dtype=bool)
        rows = np.flatnonzero(is_wanted)
        first, alike = distinct(tree.calls.kind[rows], tree.calls.arguments[rows])
        # Roles follow from how often products run, so recomputed calls are left out: not all layers may be recomputed.
        once = ~np.array(tree.recomputed, dtype=bool)[rows]
        counts = np.bincount(alike[once], minlength=len(first))
        last = np.zeros_like(first)
        last[alike] = rows
        for index, count, latest in zip(rows[first].tolist(), counts.tolist(), last.tolist(), strict=True):
            name, dims = tree.names[index], shapes(tree.arguments[index].dims)
            if name in experts.RULES:
                of_mixture[latest] = name, dims, texts(tree.arguments[index].concrete)
            elif name in _PRODUCTS:
                left, right = factors(name, dims)
                if len(left) == 2 and len(right) == 2:
                    products[right[0], right[1]] += count
                    results.add((left[0], right[1]))
                    in_order[index] = right[0], right[1]
            elif name in _FUSED_ATTENTION:
                in_order[index] = _ATTENTION
            elif name == "aten::embedding" and dims and len(dims[0]) == 2:
                embeddings.add((dims[0][0], dims[0][1]))
            elif name == "aten::_softmax" and (found := scores(dims)) is not None:
                b, heads, queries, keys = found
                softmaxes.add((b * heads, queries, keys))
                if len(dims[0]) == 4:
                    in_order[index] = _ATTENTION
            elif _is_norm(name) and dims and len(dims[0]) >= 2:
                norms.add(dims[0][-1])
        return cls(
            LinearRoles.of(+products, norms, embeddings),
            frozenset(softmaxes),
            frozenset(norms),
            frozenset(results),
            experts.expert_calls([call for _, call in sorted(of_mixture.items())], norms),
            _roles_in_order(tree, rows, [in_order.get(one) for one in rows[first].tolist()], alike),
        )


def recognised(name: str, arguments: Arguments, around: Surroundings) -> Recognition:
    """Recognise a call that `may_be_operator`."""
    if name in _OPTIMIZERS:
        return _OPTIMIZER
    dims = shapes(arguments.dims)
    if not any(dims):
        is_recorded = isinstance(arguments.dims, list) and any(arguments.dims)
        return OTHER_SHAPE if is_recorded else NO_SHAPES
    types = [DTYPES.get(text, "") for text in texts(arguments.types)]
    first = next((kind for kind, shape in zip(types, dims, strict=False) if shape), "")
    if name in experts.RULES:
        found = experts.RULES[name](name, dims, around.experts)
    elif name in _RULES:
        found = _RULES[name](name, dims, around)
    else:
        found = named_call(name, dims, texts(arguments.concrete))
    if isinstance(found, Unrecognised):
        return found
    return replace(found, dtype=first) if first else NO_TYPE


def _is_norm(name: str) -> bool:
    return name in _NORMS or (name in BY_NAME and BY_NAME[name].operator.endswith("_norm"))


def _product(name: str, dims: Shapes, around: Surroundings) -> Recognition:
    left, right = factors(name, dims)
    if len(left) != 2 or len(right) != 2 or left[1] != right[0]:
        return OTHER_SHAPE
    role = around.roles.by_width.get((right[0], right[1]), "")
    return RecognisedCall("gemm", (left[0], *right), role)


def _batched_product(name: str, dims: Shapes, around: Surroundings) -> Recognition:
    left, right = factors(name, dims)
    if len(left) != 3 or len(right) != 3 or left[0] != right[0] or left[2] != right[1]:
        return OTHER_SHAPE
    heads, queries, inner, columns = *left, right[2]
    scores, values = (
        (heads, queries, columns) in around.softmaxes,
        (heads, queries, inner) in around.softmaxes,
    )
    # Both or neither: a head as wide as the sequence is long, or no softmax of that size.
    role = "" if scores == values else "attention_scores" if scores else "attention_values"
    return RecognisedCall("batched_gemm", (heads, queries, inner, columns), role)


def _rows(operator: str, dims: Shapes) -> Recognition:
    vector = rows(dims)
    return OTHER_SHAPE if vector is None else RecognisedCall(operator, vector)


def _norm(name: str, dims: Shapes, around: Surroundings) -> Recognition:
    parameters = sum(len(shape) == 1 for shape in dims[1:])
    operator = "layer_norm" if name in _LAYER_NORMS else "rms_norm"
    if parameters != (2 if operator == "layer_norm" else 1):
        return Unrecognised("a norm without its weight (and bias)")
    return _rows(operator, dims)


def _add(name: str, dims: Shapes, around: Surroundings) -> Recognition:
    """A residual adds two activations of a norm's width; a bias is a row added to the result of a product."""
    one, other = (*dims, (), ())[:2]
    if one == other and len(one) == 3 and one[-1] in around.widths:
        return _rows("residual_add", dims)
    if (
        len(one) in (2, 3)
        and other == (one[-1],)
        and (result := (prod(one[:-1]), one[-1])) in around.products
    ):
        return RecognisedCall("bias_add", result)
    return NO_OPERATOR


_PRODUCTS = frozenset({"aten::addmm", "aten::mm", "aten::_addmm_activation", "aten::_scaled_mm"})
_LAYER_NORMS = frozenset({"aten::layer_norm", "aten::native_layer_norm"})
_NORMS = _LAYER_NORMS | {"aten::rms_norm", "aten::_fused_rms_norm"}
_FUSED_ATTENTION = frozenset(name for name, call in BY_NAME.items() if call.operator == "flash_attention")
_OF_INTEREST = _PRODUCTS | experts.RULES.keys() | _FUSED_ATTENTION | {"aten::embedding", "aten::_softmax"}
_OPTIMIZERS = frozenset({"aten::_fused_adam_", "aten::_fused_adamw_"})
_RULES: Mapping[str, Callable[[str, Shapes, Surroundings], Recognition]] = {
    **dict.fromkeys(_PRODUCTS, _product),
    **dict.fromkeys(_NORMS, _norm),
    "aten::bmm": _batched_product,
    "aten::add": _add,
    "aten::add_": _add,
}
_RECOGNISED = frozenset(_RULES) | frozenset(BY_NAME) | _OPTIMIZERS | experts.RULES.keys()


def may_be_operator(name: str) -> bool:
    """Whether calls of this name may be operators of the table."""
    return name in _RECOGNISED or is_compiled(name)
