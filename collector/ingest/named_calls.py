"""Library calls that are operators of the table by their name: rows of data, with how their inputs are read.

The profiler records an `autograd.Function` by its class, a custom operator by its schema, and a kernel that
torch.compile wrote by the operators it fused. A backward pass needs no row: autograd names the forward call.
"""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

from kernelcast.collector.ingest.recognised_calls import (
    OTHER_SHAPE,
    RecognisedCall,
    Recognition,
    Shape,
    Shapes,
    Unrecognised,
)

Reading = Callable[[Shapes], Shape | None]
"""The workload vector from the shapes of the inputs; None for shapes that the operator does not have."""
NOT_CAUSAL = Unrecognised("attention that is not causal, or does not say (Concrete Inputs)")


def rows(dims: Shapes, place: int = 0, halves: int = 1) -> Shape | None:
    """[b, l, d] of the input at `place`; rows of a matrix count as tokens of one sample."""
    shape = dims[place] if len(dims) > place else ()
    if len(shape) not in (2, 3) or shape[-1] % halves:
        return None
    *tokens, width = shape
    return (*(tokens if len(tokens) == 2 else (1, *tokens)), width // halves)


def _first_rows(dims: Shapes) -> Shape | None:
    """The first input of two or three dimensions: a compiled kernel orders its inputs its own way."""
    return next((rows((shape,)) for shape in dims if len(shape) in (2, 3)), None)


def _first_scores(dims: Shapes) -> Shape | None:
    return next((scores((shape,)) for shape in dims if len(shape) in (3, 4)), None)


def scores(dims: Shapes) -> Shape | None:
    """[b, heads, queries, keys]; three dimensions are the heads of one sample."""
    shape = dims[0] if dims else ()
    return shape if len(shape) == 4 else (1, *shape) if len(shape) == 3 else None


def _square_scores(dims: Shapes) -> Shape | None:
    """[b · heads, queries, keys]."""
    found = scores(dims)
    return None if found is None else (found[0] * found[1], *found[2:])


def _attention(dims: Shapes, heads_at: int) -> Shape | None:
    """[b, tokens, heads, kv_heads, head size] from 4-D queries and keys; heads at axis `heads_at` (1 or 2)."""
    if len(dims) < 2 or len(dims[0]) != 4 or len(dims[1]) != 4:
        return None
    tokens_at = 3 - heads_at
    query, key = ((one[0], one[tokens_at], one[heads_at], one[3]) for one in dims[:2])
    b, tokens, heads, size = query
    is_grouped = key == (b, tokens, key[2], size) and key[2] and heads % key[2] == 0
    return (b, tokens, heads, key[2], size) if is_grouped else None


heads_first = partial(_attention, heads_at=1)
"""Queries and keys [b, heads, tokens, head size]."""


def _with_values(dims: Shapes) -> Shape | None:
    """Heads first, with values shaped like the keys."""
    return heads_first(dims) if dims[1:2] == dims[2:3] else None


def _packed(dims: Shapes) -> Shape | None:
    """Queries, keys and values in one [b, tokens, 3, heads, head size]."""
    if not dims or len(dims[0]) != 5 or dims[0][2] != 3:
        return None
    b, tokens, _, heads, size = dims[0]
    return b, tokens, heads, heads, size


def _weight_first(dims: Shapes) -> Shape | None:
    """A weight [n, k] and an input [..., k], the order of TransformerEngine's products."""
    if len(dims) < 2 or len(dims[0]) != 2 or len(dims[1]) < 2 or dims[0][1] != dims[1][-1]:
        return None
    return prod(dims[1][:-1]), dims[0][1], dims[0][0]


def _looked_up(dims: Shapes) -> Shape | None:
    """A table [rows, width], and indices of any shape."""
    return (prod(dims[1]), *dims[0]) if len(dims) > 1 and len(dims[0]) == 2 and dims[1] else None


def _matrix(dims: Shapes) -> Shape | None:
    """[l, d], tokens of one sample."""
    return rows(dims) if len(dims[0]) == 2 else None


@dataclass(frozen=True, slots=True)
class NamedCall:
    """The operator of calls with these names, or the `reason` for none; input `causal_at` is the causal flag."""

    names: Sequence[str]
    operator: str = ""
    reading: str = "rows"
    variant: str = ""
    causal_at: int | None = None
    reason: str = ""


_READINGS: Mapping[str, Reading] = {
    "rows": rows,
    "gated rows": partial(rows, halves=2),  # gate and up side by side in one input
    "first rows": _first_rows,
    "scores": scores,
    "first scores": _first_scores,
    "square scores": _square_scores,
    "heads first": heads_first,
    "heads first, with values": _with_values,
    "tokens first": partial(_attention, heads_at=2),  # queries and keys [b, tokens, heads, head size]
    "packed": _packed,
    "weight first": _weight_first,
    "looked up": _looked_up,
    "matrix": _matrix,
}
_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _named(table: str) -> Mapping[str, NamedCall]:
    return {name: NamedCall(**row) for row in _DATA[table] for name in row["names"]}


BY_NAME, BY_FUSED = _named("call"), _named("fused")
_COMPILED = re.compile(r"triton_[a-z]+_fused_(.+?)(?:_\d+)?")
_LAYOUT_ONLY = re.compile(
    r"(?:^|_)(?:_to_copy|_unsafe_view|view|clone|transpose|permute|expand|unsqueeze|convert_element_type|detach|t)(?=_|$)"
)


def is_compiled(name: str) -> bool:
    """Whether torch.compile wrote the kernel that a call launches."""
    return name.startswith("triton_")


def named_call(name: str, dims: Shapes, concrete: Sequence[str]) -> Recognition:
    """Recognise a call whose name is in `BY_NAME`, or that `is_compiled`; the element type is left open."""
    row = _compiled(name) if is_compiled(name) else BY_NAME[name]
    if isinstance(row, Unrecognised):
        return row
    if row.reason:
        return Unrecognised(row.reason)
    if row.causal_at is not None and (len(concrete) <= row.causal_at or concrete[row.causal_at] != "True"):
        return NOT_CAUSAL
    vector = _READINGS[row.reading](dims)
    return OTHER_SHAPE if vector is None else RecognisedCall(row.operator, vector, variant=row.variant)


def _compiled(name: str) -> NamedCall | Unrecognised:
    found = _COMPILED.fullmatch(name)
    fused = _LAYOUT_ONLY.sub("", found[1]).lstrip("_") if found else ""
    row = next((row for known, row in BY_FUSED.items() if known.lstrip("_") == fused), None)
    return row or Unrecognised(
        f"a compiled kernel of several operators: {found[1][:80] if found else name[:80]}"
    )
