"""Which shapes a collection measures: a plan's ranges as distinct workload vectors, some of them or all."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from torch.quasirandom import SobolEngine

from kernelcast.collector.functions.stage_parameters import stage_parameter_count
from kernelcast.collector.plans.plan_file import load_plan, shipped_plans
from kernelcast.collector.plans.plan_ranges import CollectiveRange, Messages, Plan, Ranges
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.operators import OPERATORS, Operator, OperatorClass, Shape
from kernelcast.runtime.step.parameters import padded_vocabulary

__all__ = [
    "CollectiveRange",
    "Messages",
    "Plan",
    "Point",
    "Ranges",
    "compute_points",
    "distinct_points",
    "load_plan",
    "optimizer_role",
    "planned_operators",
    "shipped_plans",
]

# An operator whose range holds fewer distinct vectors than asked ends its search after this many draws per vector,
_DRAWS_PER_SHAPE = 200
# or in a row that brought nothing new; where the range has so few combinations, all of them are then gone through.
_MOST_FRUITLESS_DRAWS = 5_000
_MOST_COMBINATIONS = 200_000

_SHAPE_LIMITS = "most_tokens, most_gflop and most_elements"
# Axes that a stage's parameters do not depend on, and the one that nothing else depends on.
_NOT_OF_A_STAGE = ("micro_batch", "sequence_length")
_OF_A_STAGE = ("layers",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One thing to measure: an operator at a shape, all its directions."""

    operator: Operator
    shape: Shape
    vector: tuple[int, ...]


def compute_points(plan: Plan, operators: tuple[str, ...] = ()) -> list[Point]:
    """The points of a plan, the operators taking turns so that a drift of the machine hits all of them alike.

    Same plan, same points. `operators` keeps only those named.

    Raises:
        UsageError: a named operator is unknown or a collective, or the plan has no shape for an operator.
    """
    columns = [_operator_points(plan, op) for op in planned_operators(plan, operators)]
    longest = max(map(len, columns))
    return [column[row] for row in range(longest) for column in columns if row < len(column)]


def planned_operators(plan: Plan, operators: tuple[str, ...] = ()) -> list[Operator]:
    """The compute operators of a plan, of those only the named ones.

    Raises:
        UsageError: a named operator is unknown, a collective or not of the plan, or the plan has only collectives.
    """
    alone = [op for op in OPERATORS.values() if op.operator_class is not OperatorClass.COMMUNICATION]
    chosen = [op for op in alone if not plan.operators or op.name in plan.operators]
    if unknown := set(operators) - {op.name for op in alone}:
        name, known = sorted(unknown)[0], ", ".join(op.name for op in alone)
        what = "is a collective, which `collect comm` measures" if name in OPERATORS else "is unknown"
        raise UsageError(f"operator {name!r} {what}; expected one of {known}")
    if not chosen:
        raise UsageError(f"plan {plan.name}: its operators are collectives, which `collect comm` measures")
    if missing := sorted(set(operators) - {op.name for op in chosen}):
        known = ", ".join(op.name for op in chosen)
        raise UsageError(
            f"plan {plan.name}: its operators lack {', '.join(missing)}; expected some of {known}"
        )
    return [op for op in chosen if not operators or op.name in operators]


def distinct_points(plan: Plan, op: Operator) -> list[Point]:
    """A point for every distinct workload vector of an operator in the plan's ranges, in a seeded random order.

    Raises:
        UsageError: there is none within the plan's limits.
    """
    return _checked(plan, op, _every_point(plan, op))


def _operator_points(plan: Plan, op: Operator) -> list[Point]:
    if not plan.shapes_per_operator:
        return distinct_points(plan, op)
    found: dict[tuple[int, ...], Point] = {}
    fruitless = 0
    for shape in _drawn_shapes(plan, op):
        fruitless += 1
        if shape is not None:
            vector = op.workload(shape)
            if vector not in found and _fits(plan, op, shape, vector):
                found[vector] = Point(operator=op, shape=shape, vector=vector)
                fruitless = 0
        if len(found) == plan.shapes_per_operator or fruitless == _MOST_FRUITLESS_DRAWS:
            break
    points = list(found.values())
    if fruitless == _MOST_FRUITLESS_DRAWS and prod(map(len, _axes(plan, op).values())) <= _MOST_COMBINATIONS:
        points += [point for point in _every_point(plan, op) if point.vector not in found]
    return _checked(plan, op, points[: plan.shapes_per_operator])


def _checked(plan: Plan, op: Operator, points: list[Point]) -> list[Point]:
    if not points:
        limits = "most_parameters" if _is_of_a_stage(op) else _SHAPE_LIMITS
        raise UsageError(f"plan {plan.name}: its ranges hold no shape of {op.name} within {limits}")
    return points


def _drawn_shapes(plan: Plan, op: Operator) -> Iterator[Shape | None]:
    """Shapes by a scrambled Sobol sequence over the ranges; None for impossible combinations."""
    axes = plan.ranges.axes()
    # A seed of its own per operator: no two operators share their gaps.
    engine = SobolEngine(len(axes), scramble=True, seed=_seed(plan, op))  # type: ignore[no-untyped-call]
    for draw in range(plan.shapes_per_operator * _DRAWS_PER_SHAPE):
        picks = engine.draw(1)[0].tolist()
        values = [
            r[min(int(pick * len(r)), len(r) - 1)] for r, pick in zip(axes.values(), picks, strict=True)
        ]
        shape = _shape(plan, dict(zip(axes, values, strict=True)))
        asked = _asked_shapes(shape, op) if shape is not None else [None]
        yield asked[draw % len(asked)]


def _axes(plan: Plan, op: Operator) -> dict[str, tuple[float, ...]]:
    """The ranges, one value of those that an operator does not depend on."""
    axes = plan.ranges.axes()
    unused = _NOT_OF_A_STAGE if _is_of_a_stage(op) else _OF_A_STAGE
    return axes | {name: axes[name][:1] for name in unused}


def _every_point(plan: Plan, op: Operator) -> list[Point]:
    axes = _axes(plan, op)
    found: dict[tuple[int, ...], Point] = {}
    for values in product(*axes.values()):
        shape = _shape(plan, dict(zip(axes, values, strict=True)))
        if shape is None:
            continue
        for asked in _asked_shapes(shape, op):
            vector = op.workload(asked)
            if vector not in found and _fits(plan, op, asked, vector):
                found[vector] = Point(operator=op, shape=asked, vector=vector)
    points = [found[vector] for vector in sorted(found)]
    # An interrupted collection has then seen all of the ranges.
    random.Random(_seed(plan, op)).shuffle(points)
    return points


def _seed(plan: Plan, op: Operator) -> int:
    return plan.seed + list(OPERATORS).index(op.name)


def _shape(plan: Plan, picked: dict[str, float]) -> Shape | None:
    """The shape of one value per range; None where they do not go together (docs/plans.md, Impossible combinations)."""
    whole: Callable[[str], int] = lambda name: int(picked[name])  # noqa: E731
    d, tp = whole("hidden_size"), whole("tensor_parallel")
    size = whole("attention_heads" if "attention_heads" in picked else "head_size")
    heads = size if "attention_heads" in picked else d // size
    kv_heads, ungrouped = divmod(heads, int(picked.get("queries_per_kv_head", 1)))
    mlp_size = picked["mlp_ratio"] * d
    v = whole("vocabulary_size")
    if plan.padded_vocabulary:
        v = padded_vocabulary(v, tp)
    divided = (heads, kv_heads, int(mlp_size), v, d)
    if d % size or ungrouped or mlp_size != int(mlp_size) or not kv_heads or any(n % tp for n in divided):
        return None
    return Shape(
        micro_batch=whole("micro_batch"),
        sequence_length=whole("sequence_length"),
        hidden_size=d,
        attention_heads=heads,
        kv_heads=kv_heads,
        mlp_size=int(mlp_size),
        vocabulary_size=v,
        tensor_parallel=tp,
        stage_layers=whole("layers"),
    )


def _is_of_a_stage(op: Operator) -> bool:
    return "parameters" in op.features


def _asked_shapes(shape: Shape, op: Operator) -> list[Shape]:
    """The shapes at which a model of this one asks for an operator: biases at every linear's width."""
    if _is_of_a_stage(op):
        return [replace(shape, stage_parameters=stage_parameter_count(shape, optimizer_role(op)))]
    if op.name == "bias_add":
        widths = (shape.hidden_size, shape.qkv_width // shape.tensor_parallel, shape.local_mlp_size)
        return [replace(shape, tensor_parallel=1, mlp_size=width) for width in widths]
    return [shape]


def optimizer_role(op: Operator) -> str:
    """`first`, `middle` or `last` of an optimizer row."""
    return op.name.removeprefix("optimizer_").removesuffix("_stage")


def _fits(plan: Plan, op: Operator, shape: Shape, vector: tuple[int, ...]) -> bool:
    if _is_of_a_stage(op):
        return shape.stage_parameters <= plan.most_parameters
    return (
        shape.tokens <= plan.most_tokens
        and op.flops(op.directions[0], vector) <= plan.most_gflop * 1e9
        and op.moved_bytes(op.directions[0], vector, 1) <= plan.most_elements
    )
