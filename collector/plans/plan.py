"""The points of a collection: distinct workload vectors from a plan's ranges, a sample of them or all."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from math import prod

from torch.quasirandom import SobolEngine

from kernelcast.collector.benches import Point
from kernelcast.collector.plans.plan_ranges import Plan
from kernelcast.collector.plans.workloads import (
    Column,
    Picked,
    axes_of,
    columns_of,
    drawn_seed,
    every_workload,
    workloads,
)
from kernelcast.runtime.errors import UsageError, alternatives
from kernelcast.runtime.operators import OPERATORS, Operator, Vector

# A column with fewer distinct vectors than requested ends its search after this many draws per vector,
_DRAWS_PER_SHAPE = 200
# or this many in a row without a new vector; up to this many combinations are then enumerated.
_MOST_FRUITLESS_DRAWS = 5_000
_MOST_COMBINATIONS = 200_000
_DRAWN_AT_ONCE = 64


def compute_points(plan: Plan, operators: tuple[str, ...] = ()) -> list[Point]:
    """The points of a plan. Operators and roles take turns: drift of the machine then affects all of them equally.

    The same plan gives the same points. `operators` keeps only the named ones. UsageError where the plan has no shape
    for an operator, and as `planned_operators`.
    """
    columns = [column for op in planned_operators(plan, operators) for column in columns_of(op.name, plan)]
    if not plan.shapes_per_operator:
        return _in_turns(plan, every_workload(plan, columns))
    return _in_turns(plan, {column: _drawn_workloads(plan, column) for column in columns})


def distinct_points(plan: Plan, operators: Sequence[Operator]) -> dict[str, list[Point]]:
    """For each operator, a point for every distinct workload vector in the plan's ranges; its roles take turns."""
    columns = {op.name: columns_of(op.name, plan) for op in operators}
    found = every_workload(plan, [column for own in columns.values() for column in own])
    return {name: _in_turns(plan, {column: found[column] for column in own}) for name, own in columns.items()}


def planned_operators(
    plan: Plan, operators: Sequence[str] = (), *, collectives: bool = False
) -> list[Operator]:
    """The operators of a plan that one device runs alone, or its collectives; `operators` keeps only the named ones.

    A plan that names no collective means all of them. Operators that no step calls are measured only where named.
    UsageError where a named operator is unknown, of the other kind or not planned, or the plan has none of the kind.
    """
    kind = [op for op in OPERATORS.values() if op.is_collective == collectives and _is_collected(op.name)]
    if unknown := sorted(set(operators) - {op.name for op in kind}):
        known = alternatives(unknown[0], [op.name for op in kind])
        raise UsageError(f"operator {unknown[0]!r} {_why_not(unknown[0])}; {known}")
    chosen = [op for op in kind if op.name in plan.operators]
    if not collectives and (imported := [name for name in plan.operators if not _is_collected(name)]):
        raise UsageError(f"plan {plan.name}: operator {imported[0]} {_why_not(imported[0])}")
    if not chosen and plan.operators and not collectives:
        raise UsageError(f"plan {plan.name}: its operators are collectives, which `collect comm` measures")
    if not chosen:
        named = {*operators, *plan.collectives}
        chosen = [op for op in kind if not op.is_on_request or op.name in named]
    if not collectives:
        named = {*operators, *plan.operators}
        lacking = [op.name for op in chosen if not columns_of(op.name, plan)]
        if refused := [name for name in lacking if name in named]:
            raise UsageError(
                f"plan {plan.name}: it has no models that call {refused[0]}; expected ranges of experts, "
                "kv_rank, sliding_window or context_parallel (docs/plans.md)"
            )
        chosen = [op for op in chosen if op.name not in lacking]
    if missing := sorted(set(operators) - {op.name for op in chosen}):
        known = ", ".join(op.name for op in chosen)
        raise UsageError(
            f"plan {plan.name}: its operators lack {', '.join(missing)}; expected some of {known}"
        )
    return [op for op in chosen if not operators or op.name in operators]


def _is_collected(name: str) -> bool:
    return OPERATORS[name].is_collective or bool(columns_of(name))


def _why_not(name: str) -> str:
    if name not in OPERATORS:
        return "is unknown"
    if OPERATORS[name].is_collective:
        return "is a collective, which `collect comm` measures"
    if not _is_collected(name):
        return "has no bench, and is imported only"
    return "is no collective, `collect compute` measures it"


def _in_turns(plan: Plan, columns: dict[Column, list[Vector]]) -> list[Point]:
    """The columns' points, one of each in turn; a workload of several roles counts once, for the first role."""
    for (operator, role), vectors in columns.items():
        if not vectors:
            limits = (
                "most_parameters"
                if OPERATORS[operator].per_update
                else "most_tokens, most_gflop and most_elements"
            )
            what = f"{operator} ({role})" if role else operator
            raise UsageError(f"plan {plan.name}: its ranges hold no shape of {what} within {limits}")
    found: dict[tuple[str, Vector], Point] = {}
    for row in zip_longest(*columns.values()):
        for (operator, role), vector in zip(columns, row, strict=True):
            if vector is not None:
                point = Point(operator=operator, role=role, vector=vector)
                found.setdefault((operator, vector), point)
    return list(found.values())


def _drawn_workloads(plan: Plan, column: Column) -> list[Vector]:
    found: dict[Vector, None] = {}
    fruitless = 0
    for draw, picked in enumerate(_draws(plan, column)):
        asked = workloads(plan, picked, [column]).get(column)
        known = len(found)
        if asked:
            found[asked[draw % len(asked)]] = None
        fruitless = 0 if len(found) > known else fruitless + 1
        if len(found) == plan.shapes_per_operator or fruitless == _MOST_FRUITLESS_DRAWS:
            break
    if (
        fruitless == _MOST_FRUITLESS_DRAWS
        and prod(map(len, axes_of(plan, column).values())) <= _MOST_COMBINATIONS
    ):
        found |= dict.fromkeys(every_workload(plan, [column])[column])
    return list(found)[: plan.shapes_per_operator]


def _draws(plan: Plan, column: Column) -> Iterator[Picked]:
    """Values of the ranges from a scrambled Sobol sequence per column: no two columns share their gaps."""
    axes = plan.axes()
    engine = SobolEngine(len(axes), scramble=True, seed=drawn_seed(plan, column))  # type: ignore[no-untyped-call]
    left = plan.shapes_per_operator * _DRAWS_PER_SHAPE
    while left > 0:
        drawn: Iterable[list[float]] = engine.draw(min(left, _DRAWN_AT_ONCE)).tolist()
        left -= _DRAWN_AT_ONCE
        for picks in drawn:
            values = [
                own[min(int(pick * len(own)), len(own) - 1)]
                for own, pick in zip(axes.values(), picks, strict=True)
            ]
            yield dict(zip(axes, values, strict=True))
