"""Operators that a program writes as several calls: norms, rotary embedding and gates without a kernel of their own.

Rows of data: the calls in their order. Changes of layout and type in between belong to the operator; a product between
a gate's activation and its multiplication stays a product.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernelcast.collector.ingest.named_calls import heads_first, rows
from kernelcast.collector.ingest.recognised_calls import DTYPES, NO_TYPE, RecognisedCall, Recognition, Shapes
from kernelcast.collector.traces.arguments import shapes, texts
from kernelcast.collector.traces.call_tree import NODE_PREFIX, CallTree

VARIANT = "unfused"


@dataclass(frozen=True, slots=True)
class CallSequence:
    """Calls in their order; `reading` gives the workload vector from the shapes of each, None where they do not fit."""

    operator: str
    names: tuple[str, ...]
    reading: Callable[[Sequence[Shapes]], tuple[int, ...] | None]


def _rows(dims: Sequence[Shapes]) -> tuple[int, ...] | None:
    return rows(dims[0])


def _gate(dims: Sequence[Shapes]) -> tuple[int, ...] | None:
    """The activation's input is as large as both factors."""
    first, last = dims[0][:1], dims[-1][:2]
    return rows(dims[0]) if last == (*first, *first) else None


def _rotary(dims: Sequence[Shapes]) -> tuple[int, ...] | None:
    """Queries in the first half of the calls, keys in the second, each [b, heads, tokens, head size]."""
    query, key = (dims[place][0] if dims[place] else () for place in (0, len(dims) // 2))
    return heads_first((query, key))


_ROTATED = ("mul", "neg", "cat", "mul", "add")
SEQUENCES = (
    CallSequence("rms_norm", ("pow", "mean", "add", "rsqrt", "mul", "mul"), _rows),
    CallSequence("rope", _ROTATED * 2, _rotary),
    CallSequence("swiglu", ("silu", "mul"), _gate),
    CallSequence("swiglu", ("gelu", "mul"), _gate),
)
_INSIDE = frozenset(
    f"aten::{name}"
    for name in (
        "to", "slice", "view", "unsqueeze", "squeeze", "contiguous", "transpose", "reshape", "split", "chunk", "narrow",
        "type_as", "expand", "clone", "detach", "select", "unbind", "permute",
    )
)  # fmt: skip
_BETWEEN = frozenset({"aten::linear", "aten::mm", "aten::addmm", "aten::matmul", "aten::t"})
_BY_FIRST: Mapping[str, tuple[CallSequence, ...]] = {
    first: tuple(row for row in SEQUENCES if row.names[0] == first)
    for first in {row.names[0] for row in SEQUENCES}
}


def sequences_of(tree: CallTree) -> dict[int, tuple[int, Recognition]]:
    """For each call in a sequence: the index of the first call, and the operator."""
    is_outer = np.array([parent is None for parent in tree.parents], dtype=bool)
    is_outer &= ~tree.calls.where(lambda _, name: name.startswith(NODE_PREFIX))
    is_first = tree.calls.where(lambda _, name: name.removeprefix("aten::") in _BY_FIRST)
    by_thread: dict[str, list[int]] = defaultdict(list)
    nodes = tree.backward_nodes
    for index in np.flatnonzero(is_outer).tolist():
        if nodes[index] is None:
            by_thread[tree.threads[index]].append(index)
    found: dict[int, tuple[int, Recognition]] = {}
    for calls in by_thread.values():
        for place in np.flatnonzero(is_first[calls]).tolist():
            if (index := calls[place]) in found:
                continue
            for row in _BY_FIRST[tree.names[index].removeprefix("aten::")]:
                if (matched := _matched(tree, calls, place, row)) is not None:
                    part, point = matched
                    found |= dict.fromkeys(part, (index, point))
                    break
    return found


def _matched(
    tree: CallTree, calls: Sequence[int], place: int, row: CallSequence
) -> tuple[list[int], Recognition] | None:
    """Calls and operator of the sequence that begins at `place`, if any."""
    own: list[int] = []
    part: list[int] = []
    for position in range(place, len(calls)):
        index = calls[position]
        name = tree.names[index]
        if name == f"aten::{row.names[len(own)]}":
            own.append(index)
            part.append(index)
            if len(own) == len(row.names):
                break
        elif name in _INSIDE:
            part.append(index)
        elif name not in _BETWEEN:
            return None
    if len(own) < len(row.names):
        return None
    vector = row.reading([shapes(tree.arguments[index].dims) for index in own])
    if vector is None:
        return None
    dtype = next((DTYPES.get(text, "") for text in texts(tree.arguments[own[0]].types)), "")
    return part, RecognisedCall(row.operator, vector, variant=VARIANT, dtype=dtype) if dtype else NO_TYPE
