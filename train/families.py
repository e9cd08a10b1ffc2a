"""Operators that obey one law: what was measured of one tells about the others, so they may share a regressor.

All linear operators are one GEMM [M, K, N], both batched products of attention another, the stages' optimizer steps
one update; a collective is the same whichever group calls it. Elementwise operators run kernels of their own.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

from kernelcast.runtime.operators import OPERATORS, Direction, Operator, OperatorClass, Shape
from kernelcast.train.dataset import Array, Table

_FAMILIES = (OperatorClass.COMPUTE, OperatorClass.OPTIMIZER, OperatorClass.COMMUNICATION)
# Of the largest singular value: what is smaller says that some features only ever move together.
_RANK_TOLERANCE = 1e-3


def relatives(table: Table, tables: Sequence[Table]) -> tuple[Table, ...]:
    """The other tables whose operators have the same law, in the same direction."""
    own = _law(OPERATORS[table.operator], table.direction)
    return tuple(
        other
        for other in tables
        if other.operator != table.operator
        and other.processes_per_node == table.processes_per_node
        and other.direction == table.direction
        and own is not None
        and _law(OPERATORS[other.operator], other.direction) == own
    )


def pooled(table: Table, others: Sequence[Table]) -> Table:
    """One table of a family's rows, under the name of the first."""
    return Table(
        operator=table.operator,
        direction=table.direction,
        workloads=np.concatenate([table.workloads, *(other.workloads for other in others)]),
        times_us=np.concatenate([table.times_us, *(other.times_us for other in others)]),
        processes_per_node=table.processes_per_node,
    )


def leaves_open(table: Table, others: Sequence[Table]) -> bool:
    """Whether features moved together in a table's rows that a step moves apart, as its relatives' rows did.

    Such rows cannot say which of the features takes the time: a square product at tp = 1 says nothing about tp = 4.
    Queries and keys of attention always have one length, so that nothing is left open where they do in the rows.
    """
    if not others:
        return False
    own, family = _rank(table.workloads), _rank(pooled(table, others).workloads)
    return own < min(family, _asked_rank(table.operator))


def _law(op: Operator, direction: Direction) -> object:
    """What operators of a family have in common: costs by position of the features; None where there is no family."""
    if op.operator_class not in _FAMILIES:
        return None
    position = {name: number for number, name in enumerate(op.features)}
    cost = op.costs[direction]
    terms = tuple(
        frozenset(
            (term.coefficient, tuple(sorted(position[name] for name in term.features))) for term in side
        )
        for side in (cost.flops, cost.elements)
    )
    return op.operator_class, op.collective, len(position), terms


@cache
def _asked_rank(operator: str) -> int:
    """Rank of the workloads that steps of different sizes and layouts ask for."""
    sizes = np.random.default_rng(0).integers(1, 9, size=(64, 10))
    asked = [
        Shape(
            micro_batch=int(b),
            sequence_length=int(1024 * length),
            hidden_size=int(128 * heads * width * 8),
            attention_heads=int(8 * heads),
            kv_heads=8,
            mlp_size=int(1024 * mlp),
            vocabulary_size=int(1024 * vocabulary),
            tensor_parallel=2 ** int(tp % 4),
            stage_layers=int(layers),
            stage_parameters=int(10**6 * parameters),
            nodes=int(nodes),
            gpus_per_node=2 ** int(tp % 3),
        )
        for b, length, heads, width, mlp, vocabulary, tp, layers, parameters, nodes in sizes.tolist()
    ]
    return _rank(np.array([OPERATORS[operator].workload(shape) for shape in asked], dtype=np.float64))


def _rank(workloads: Array) -> int:
    logs = np.log(np.maximum(workloads, 1.0))
    singular = np.linalg.svd(logs - logs.mean(axis=0), compute_uv=False)
    return int((singular > _RANK_TOLERANCE * max(float(singular.max()), 1e-12)).sum())
