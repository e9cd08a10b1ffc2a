"""The workloads at which models of a plan's sizes call an operator, from the descriptions of their layers."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache, partial
from hashlib import sha256
from itertools import product
from typing import Any, NamedTuple, TypeAlias, get_args

from kernelcast.collector.plans.model_workloads import model_columns, model_workloads, update_calls
from kernelcast.collector.plans.plan_ranges import Plan
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.operators import OPERATORS, Vector
from kernelcast.runtime.request.fields import Activation, Attention, ContextExchange, Norm
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.chunks import LayerKind, StageKind
from kernelcast.runtime.step.layers.loss import embedding, loss
from kernelcast.runtime.step.layers.transformer_layer import transformer_layer
from kernelcast.runtime.step.op import Calls, computing
from kernelcast.runtime.step.parameters import PartParameters
from kernelcast.runtime.step.sizes import Sizes

Column: TypeAlias = tuple[str, str]
"""An operator and one of its roles."""
Picked: TypeAlias = Mapping[str, float]
"""One value of every range of a plan."""


class _Variant(NamedTuple):
    """Models with workloads of their own: fields of the model, fields of its sizes, and whether the sizes divide.

    A plan includes the variant if its ranges have the axes `needs`.
    """

    needs: tuple[str, ...] = ()
    model: Callable[[Picked], dict[str, Any]] = lambda picked: {}
    sizes: Callable[[Picked], dict[str, Any]] = lambda picked: {}
    is_possible: Callable[[Picked], bool] = lambda picked: True


# The smallest set of models with every choice. Rotary embedding and biases need none: layers always list these calls,
# with a count of 0 where a model lacks them.
_CHOICES = {"norm": get_args(Norm), "activation": get_args(Activation), "attention": get_args(Attention)}


def _chosen(number: int) -> _Variant:
    fields = {name: choices[number % len(choices)] for name, choices in _CHOICES.items()}
    return _Variant(model=lambda picked: fields)


_TODAY = {"norm": "rms_norm", "activation": "swiglu", "biases": "none"}


def _latent(picked: Picked) -> dict[str, Any]:
    """DeepSeek-V2's proportions: query rank three times `kv_rank`, a third of a head rotated, the rest values."""
    head_size = int(picked["hidden_size"] // _heads(picked))
    rotated = max(2, head_size // 6 * 2)
    ranks = {"kv_rank": int(picked["kv_rank"]), "query_rank": 3 * int(picked["kv_rank"])}
    sizes = {"kv_heads": _heads(picked), "rotary_size": rotated, "value_head_size": head_size - rotated}
    return _TODAY | ranks | sizes


def _experts(picked: Picked) -> dict[str, Any]:
    width = int(picked["expert_ratio"] * picked["hidden_size"])
    names = ("experts", "experts_per_token")
    sizes = {"expert_size": width, "shared_expert_size": width, "qk_norm": True}
    return _TODAY | sizes | {name: int(picked[name]) for name in names}


def _expert_sizes(picked: Picked) -> dict[str, Any]:
    cut = int(picked["tensor_parallel"] > 1)
    kind = LayerKind(has_experts=True)
    return {"kind": kind, "ep": int(picked.get("expert_parallel", 1)), "sequence_parallel": cut}


def _experts_divide(picked: Picked) -> bool:
    tp, width = int(picked["tensor_parallel"]), picked["expert_ratio"] * picked["hidden_size"]
    return (
        picked["experts"] % picked.get("expert_parallel", 1) == 0
        and picked["experts_per_token"] <= picked["experts"]
        and width % tp == 0 < width
        and picked["sequence_length"] % tp == 0
    )


def _of_context(exchange: ContextExchange) -> _Variant:
    def is_possible(picked: Picked) -> bool:
        parts, tp = int(picked["context_parallel"]), int(picked["tensor_parallel"])
        kv_heads = _heads(picked) // int(picked.get("queries_per_kv_head", 1))
        return (
            parts > 1
            and picked["sequence_length"] % (2 * parts) == 0
            and (exchange != "all_to_all" or kv_heads % (parts * tp) == 0)
        )

    return _Variant(
        ("context_parallel",),
        lambda picked: _TODAY,
        lambda picked: {"cp": int(picked["context_parallel"]), "context_exchange": exchange},
        is_possible,
    )


_VARIANTS: tuple[_Variant, ...] = (
    *(_chosen(number) for number in range(max(map(len, _CHOICES.values())))),
    _Variant(("experts", "experts_per_token", "expert_ratio"), _experts, _expert_sizes, _experts_divide),
    _Variant(("kv_rank",), _latent),
    _Variant(
        ("sliding_window",),
        lambda picked: _TODAY,
        lambda picked: {"kind": LayerKind(window=int(picked["sliding_window"]))},
        lambda picked: picked["sliding_window"] < picked["sequence_length"],
    ),
    *map(_of_context, get_args(ContextExchange)),
)

# Axes that a stage's parameters do not depend on, and the axis that only they depend on.
_NOT_OF_A_STAGE = (
    "micro_batch", "sequence_length", "experts", "experts_per_token", "expert_ratio", "expert_parallel",
    "context_parallel", "kv_rank", "sliding_window",
)  # fmt: skip
_OF_A_STAGE = ("layers",)


def _update(sizes: Sizes, *, first: bool, last: bool) -> Calls:
    stage = StageKind(counts=(sizes.model.layers,), first=first, last=last)
    return update_calls(PartParameters.of(sizes), stage)


_LAYERS: tuple[Callable[[Sizes], Calls], ...] = (
    lambda sizes: computing(embedding(sizes)),
    lambda sizes: computing(transformer_layer(sizes)),
    lambda sizes: computing(loss(sizes)),
)
# Only of the first variant: other variants differ in the number of parameters alone.
_UPDATES = (
    partial(_update, first=True, last=False),
    partial(_update, first=False, last=False),
    partial(_update, first=False, last=True),
)
_PARTS: tuple[Callable[[Sizes], Calls], ...] = (*_LAYERS, *_UPDATES)


class _Source(NamedTuple):
    """A source of workloads: the calls of an operator in a role that a part of a variant lists."""

    variant: int
    part: int
    listed: Column


# All sizes differ, so that equal workloads mean the same call.
_EXAMPLE: Picked = {
    "tensor_parallel": 2, "micro_batch": 3, "sequence_length": 88, "hidden_size": 416, "head_size": 13,
    "queries_per_kv_head": 4, "mlp_ratio": 3.5, "vocabulary_size": 1000, "layers": 5, "experts": 15,
    "experts_per_token": 7, "expert_ratio": 1.25, "expert_parallel": 3, "context_parallel": 4, "kv_rank": 19,
    "sliding_window": 17,
}  # fmt: skip


@cache
def _sources(axes: frozenset[str]) -> Mapping[Column, Sequence[_Source]]:
    """The sources of every column in ranges with these axes, without sources of duplicate workloads."""
    parts = _part_calls(_EXAMPLE)
    found: dict[Column, dict[Vector, _Source]] = {}
    for number, variant in enumerate(_VARIANTS):
        for part in range(len(_LAYERS if number else _PARTS)) if axes.issuperset(variant.needs) else ():
            for one in parts(number, part):
                column = one.operator, one.role
                found.setdefault(column, {}).setdefault(one.shape, _Source(number, part, column))
    called = {operator for operator, _ in found}
    for op in OPERATORS.values():
        if op.name not in called and not op.dtype:  # products in 8 bit have no bench
            alike = [own for (name, _), own in found.items() if OPERATORS[name].features == op.features]
            if alike:
                found[op.name, ""] = {shape: source for own in alike for shape, source in own.items()}
    return {column: tuple(dict.fromkeys(own.values())) for column, own in found.items()}


class _Shapes:
    """The shapes of columns at picked sizes; a layer is described once for all sizes that make no difference to a
    column.
    """

    def __init__(self, axes: frozenset[str]) -> None:
        self._axes = axes
        self._known: dict[tuple[_Source, tuple[tuple[str, float], ...]], tuple[Vector, ...]] = {}

    def of(self, picked: Picked, columns: Sequence[Column]) -> dict[Column, Sequence[Vector]]:
        """Shapes by column; errors as `workloads`."""
        parts, sources = _part_calls(picked), _sources(self._axes)
        return {
            column: [shape for source in sources[column] for shape in self._at(picked, parts, source)]
            for column in columns
        }

    def _at(self, picked: Picked, parts: Callable[[int, int], Calls], source: _Source) -> tuple[Vector, ...]:
        if not _VARIANTS[source.variant].is_possible(picked):
            return ()
        key = source, tuple((axis, picked[axis]) for axis in _axes_of(frozenset(picked), source))
        if key not in self._known:
            self._known[key] = _listed(parts, source)
        return self._known[key]


@lru_cache(maxsize=2)
def _shapes(axes: frozenset[str]) -> _Shapes:
    return _Shapes(axes)


def _listed(parts: Callable[[int, int], Calls], source: _Source) -> tuple[Vector, ...]:
    calls = parts(source.variant, source.part)
    return tuple(one.shape for one in calls if (one.operator, one.role) == source.listed)


@cache
def _axes_of(axes: frozenset[str], source: _Source) -> tuple[str, ...]:
    """The axes that the shapes of a source depend on: other values of them change the shapes at the example."""
    example = {**_EXAMPLE, **({"attention_heads": 32} if "attention_heads" in axes else {})}

    def shapes(**other: float) -> tuple[Vector, ...] | None:
        picked = example | other
        try:
            return _listed(_part_calls(picked), source) if _divides(picked) else None
        except UsageError:
            return None

    at_example = shapes()
    return tuple(
        axis
        for axis in sorted(axes)
        if any(shapes(**{axis: value}) != at_example for value in (1, 2 * example[axis]))
    )


def columns_of(operator: str, plan: Plan | None = None) -> list[Column]:
    """The operator in every role in which models of the plan's ranges (None: any ranges) call it; empty for an operator
    that is only imported.
    """
    if plan is not None and plan.models:
        return [column for column in model_columns(plan.models, plan.ranges) if column[0] == operator]
    axes = _EXAMPLE if plan is None else plan.axes()
    return [column for column in _sources(frozenset(axes)) if column[0] == operator]


def drawn_seed(plan: Plan, column: Column) -> int:
    """The seed of a column's draws, which does not change when the table gains operators."""
    text = f"{plan.seed} {' '.join(column)}"
    return int.from_bytes(sha256(text.encode()).digest()[:4])


def axes_of(plan: Plan, column: Column) -> dict[str, tuple[float, ...]]:
    """The plan's ranges, with a single value for axes that the column does not depend on."""
    axes = plan.axes()
    unused = _NOT_OF_A_STAGE if OPERATORS[column[0]].per_update else _OF_A_STAGE
    kept = ("expert_parallel",) if plan.models else ()  # whose experts are among the parameters
    return axes | {name: axes[name][:1] for name in unused if name in axes and name not in kept}


def every_workload(plan: Plan, columns: Sequence[Column]) -> dict[Column, list[Vector]]:
    """Every distinct workload of each column in the plan's ranges, in a seeded random order."""
    found: dict[Column, dict[Vector, None]] = {column: {} for column in columns}
    for per_update in (False, True):
        own = [column for column in columns if OPERATORS[column[0]].per_update == per_update]
        axes = axes_of(plan, own[0]) if own else {"": ()}
        for values in product(*axes.values()):
            picked = dict(zip(axes, values, strict=True))
            for column, vectors in workloads(plan, picked, own).items():
                found[column].update(dict.fromkeys(vectors))
    ordered = {column: sorted(vectors) for column, vectors in found.items()}
    for column, vectors in ordered.items():
        # An interrupted collection then covers all ranges.
        random.Random(drawn_seed(plan, column)).shuffle(vectors)
    return ordered


def workloads(plan: Plan, picked: Picked, columns: Sequence[Column]) -> dict[Column, list[Vector]]:
    """The workloads within the plan's limits at which models of the picked sizes call each column.

    Empty for impossible combinations of sizes (docs/plans.md, Impossible combinations); UsageError for a size that no
    model may have.
    """
    tokens = picked["micro_batch"] * picked["sequence_length"]
    found: Mapping[Column, Iterable[Vector]]
    if plan.models:
        found = model_workloads(plan.models, picked)
    elif _divides(picked):
        found = _shapes(frozenset(plan.axes())).of(picked, columns)
    else:
        return {}
    return {
        column: [
            shape for shape in dict.fromkeys(found.get(column, ())) if _fits(plan, column[0], shape, tokens)
        ]
        for column in columns
    }


def _part_calls(picked: Picked) -> Callable[[int, int], Calls]:
    """Calls by the index of a variant and of a part, at the picked sizes; cached."""
    whole = {name: int(value) for name, value in picked.items()}
    heads = _heads(picked)

    @cache
    def sizes(variant: int) -> Sizes | None:
        own = _VARIANTS[variant]
        if not own.is_possible(picked):
            return None
        fields = {
            "hidden_size": whole["hidden_size"],
            "sequence_length": whole["sequence_length"],
            "attention_heads": heads,
            "kv_heads": heads // whole.get("queries_per_kv_head", 1),
            "layers": whole["layers"],
            "vocabulary_size": whole["vocabulary_size"],
            "mlp_size": int(picked["mlp_ratio"] * picked["hidden_size"]),
        }
        model = ModelConfig(name="planned", **fields | own.model(picked))
        tp, micro_batch = whole["tensor_parallel"], whole["micro_batch"]
        return Sizes.alone(model, tp=tp, micro_batch=micro_batch, **own.sizes(picked))

    def calls(variant: int, part: int) -> Calls:
        found = sizes(variant)
        return () if found is None else _PARTS[part](found)

    return cache(calls)


def _heads(picked: Picked) -> int:
    return int(picked.get("attention_heads") or picked["hidden_size"] // picked["head_size"])


def _divides(picked: Picked) -> bool:
    """Whether all sizes divide without remainder."""
    heads, grouped = _heads(picked), int(picked.get("queries_per_kv_head", 1))
    mlp_size, tp = picked["mlp_ratio"] * picked["hidden_size"], int(picked["tensor_parallel"])
    return (
        picked["hidden_size"] % (picked.get("head_size") or heads) == 0
        and heads % (grouped * tp) == 0 < heads
        and mlp_size % tp == 0
    )


def _fits(plan: Plan, operator: str, vector: Vector, tokens: float) -> bool:
    op = OPERATORS[operator]
    if op.per_update:
        return op.named(vector)["parameters"] <= plan.most_parameters
    return (
        tokens <= plan.most_tokens
        and op.flops(op.directions[0], vector) <= plan.most_gflop * 1e9
        and op.moved_bytes(op.directions[0], vector, 1) <= plan.most_elements
    )
