"""What one row of the operator table is: names, workload vector, FLOPs and elements moved."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.shape import Shape


class OperatorClass(StrEnum):
    """What bounds an operator's time."""

    COMPUTE = "compute-bound"
    MEMORY = "memory-bound"
    COMMUNICATION = "communication"
    OPTIMIZER = "optimizer"


class Direction(StrEnum):
    """Which part of the step an operator's time belongs to; `ONCE` marks operators that have one time only."""

    FORWARD = "forward"
    BACKWARD = "backward"
    ONCE = "once"


@dataclass(frozen=True, slots=True)
class Term:
    """One monomial: `coefficient` × the product of the named features (a name given twice counts squared)."""

    coefficient: float
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOPs and elements read or written by one call, as sums of monomials in the workload features."""

    flops: tuple[Term, ...]
    elements: tuple[Term, ...]


def _terms(text: str) -> tuple[Term, ...]:
    """Read `"2 m k n + 3 m"` as monomials; an empty text is zero."""
    terms = []
    for part in filter(None, (piece.split() for piece in text.split("+"))):
        terms.append(Term(float(part[0]), tuple(part[1:])))
    return tuple(terms)


def cost(*, flops: str, elements: str) -> Cost:
    return Cost(_terms(flops), _terms(elements))


def evaluate(terms: Sequence[Term], workload: Mapping[str, float]) -> float:
    """Value of a sum of monomials at a workload given as feature name → value."""
    return sum(term.coefficient * prod(workload[name] for name in term.features) for term in terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One row of the table. `features` are ordered: they are the workload vector, the columns of a regressor.

    A `supplementary` one is left out of the sum where a bundle lacks it.
    """

    name: str
    paper_name: str
    title: str
    operator_class: OperatorClass
    features: Mapping[str, str]
    workload_of: Callable[[Shape], tuple[int, ...]] = field(repr=False)
    costs: Mapping[Direction, Cost] = field(repr=False)
    collective: str = ""
    supplementary: bool = False

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions that have a time of their own."""
        return tuple(self.costs)

    def workload(self, shape: Shape) -> tuple[int, ...]:
        """Workload vector of this operator at `shape`, in the order of `features`."""
        return self.workload_of(shape)

    def flops(self, direction: Direction, vector: Sequence[float]) -> float:
        """Floating-point operations of one call at a workload vector."""
        return evaluate(self.costs[direction].flops, self._named(vector))

    def moved_bytes(self, direction: Direction, vector: Sequence[float], element_bytes: int) -> float:
        """Bytes read plus written by one call (for collectives: the bytes one process puts in), at a vector."""
        return element_bytes * evaluate(self.costs[direction].elements, self._named(vector))

    def _named(self, vector: Sequence[float]) -> dict[str, float]:
        if len(vector) != len(self.features):
            expected = ", ".join(self.features)
            raise UsageError(f"{self.name}: workload vector has {len(vector)} entries, expected [{expected}]")
        return dict(zip(self.features, vector, strict=True))
