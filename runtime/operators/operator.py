"""What the table says about an operator: its workload vector, its costs, and the roles in which a step calls it."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType

from kernelcast.runtime.dataclass import dataclass, field
from kernelcast.runtime.errors import UsageError

Vector = tuple[int, ...]
"""A workload: one number per feature of the operator, in the order of `Operator.features`."""


class OperatorClass(StrEnum):
    """What bounds an operator's time."""

    COMPUTE = "compute-bound"
    MEMORY = "memory-bound"
    COMMUNICATION = "communication"
    OPTIMIZER = "optimizer"


class Direction(StrEnum):
    """Which part of a step a time belongs to; `ONCE` where an operator has one time. A linear's backward pass is
    `INPUT_GRADIENT` and `WEIGHT_GRADIENT`; `BACKWARD` is their sum where only that was measured, and other operators'
    whole.
    """

    FORWARD = "forward"
    BACKWARD = "backward"
    INPUT_GRADIENT = "input_gradient"
    WEIGHT_GRADIENT = "weight_gradient"
    ONCE = "once"

    @property
    def is_backward(self) -> bool:
        """Whether it is part of the backward pass."""
        return self in (Direction.BACKWARD, Direction.INPUT_GRADIENT, Direction.WEIGHT_GRADIENT)

    @property
    def of_pass(self) -> str:
        """The pass that it belongs to: "forward", "backward" or "once"."""
        return "backward" if self.is_backward else self.value


Key = tuple[str, Direction]
"""What a regressor answers: an operator and a direction."""
BOTH_PASSES = (Direction.FORWARD, Direction.BACKWARD)


def as_it_is(vector: Vector) -> tuple[Vector, float]:
    """`Substitute.asks` for equal work: the same workload, once."""
    return vector, 1.0


@dataclass(frozen=True, slots=True)
class Term:
    """One monomial: `coefficient` × the product of the named features (a name given twice counts squared)."""

    coefficient: float
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOPs and elements moved by one call, and the fewest that any kernel moves, as sums of monomials in features."""

    flops: tuple[Term, ...]
    elements: tuple[Term, ...]
    least_elements: tuple[Term, ...]


def cost(*, flops: str = "", elements: str, least: str | None = None) -> Cost:
    """A cost from texts such as `"2 m k n + 3 m"`; an empty text is zero, `least` by default `elements`."""
    return Cost(_terms(flops), _terms(elements), _terms(elements if least is None else least))


def _terms(text: str) -> tuple[Term, ...]:
    parts = filter(None, (piece.split() for piece in text.split("+")))
    return tuple(Term(float(part[0]), tuple(part[1:])) for part in parts)


def evaluate(terms: Sequence[Term], workload: Mapping[str, float]) -> float:
    """Value of a sum of monomials at a workload given as feature name → value."""
    total = 0.0
    for term in terms:
        product: float = 1
        for name in term.features:
            product = product * workload[name]
        total += term.coefficient * product
    return total


@dataclass(frozen=True, slots=True)
class Role:
    """Why a step calls an operator: the row of the paper's Table I (`paper_name`, empty where it has none)."""

    name: str
    paper_name: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitute:
    """What answers for an operator that a bundle lacks: `factor` × the time of `operator`, or `backward_factor` of a
    backward pass, where that differs.

    - `alike`: it is evaluated at a workload that moves as much memory;
    - `gathered`: it is evaluated at all processes' entries, not at one process's shard;
    - `asks`: a function from the workload to another workload of equal work, and the factor for its time;
    - else for the same workload.

    Nine of ten times of equal work are within a factor of `within`, where that was measured (docs/trust.md).
    """

    operator: str
    factor: float = 1.0
    alike: bool = False
    gathered: bool = False
    asks: "Callable[[Vector], tuple[Vector, float]] | None" = None
    backward_factor: float | None = None
    within: float = 1.3


Wire = Callable[[int, int], tuple[float, float]]
"""Of nodes and devices per node: multiples of the entries that a device has to send or receive over its own link, and a
node over all its network cards, in the busier direction and by the best algorithm (in-network reduction, multicast)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One row of the table: one kernel law. `features` are ordered: they are the columns of a regressor.

    - `roles`: why steps call it, by name; an operator with one use has the role "".
    - `directions`: directions with a time of their own, in the order of a step; `forward` and `backward` are the
      directions of either pass. `sums` names a direction that is the sum of others, where only the sum was measured.
    - `is_collective`: processes exchange data in it; its last two features are nodes and GPUs per node.
    - `per_update`: called once per update over all parameters of a stage, not once per micro-batch.
    - `is_optional`: left out of the sum where a bundle lacks it, with a warning.
    - `substitute`: what answers where a bundle lacks it.
    - `equal_unless_measured`: (feature, partner): if equal in all measurements, evaluated as equal.
    - `folded`: (feature, others): where it was measured with one value, the others are multiplied instead.
    - `ring_passes`: a collective's entries over each link of a ring, as a function of the processes p:
      `ring_passes[0] + ring_passes[1] · p + ring_passes[2] / p` (NVIDIA nccl-tests, PERFORMANCE.md).
    - `is_divided`: a collective whose entries are split between the processes, an equal part for each; `is_in_place`:
      one that frameworks call with the same buffer for input and output.
    - `wire`: the least that a collective sends.
    - `is_elementwise`: its time depends on its number of elements, whatever their shape.
    - `is_reduced`: a collective whose sum ends on every process, which switches can make; `is_pairwise`: one in which
      every process sends to every other directly; `is_sharded`: one whose entries are one process's shard of the whole.
    - `is_on_request`: few steps call it, or none; measured only by name, if it has a bench.
    - `same_product`: directions that are the forward product of other features, named in its order.
    - `divisible`: features that a call can be divided along into calls that together take as long or longer: larger
      values than were measured make no answer more doubtful.
    - `backward_slowdown`: how much longer a FLOP of the backward pass takes, where only the other pass was measured.
    - `dtype`: the element type that it computes in, whatever the training's; empty for the training's.
    - `variant_flops`: multiples of the FLOPs by the variant that was measured, such as attention without a mask.
    - `kernels`: those that frameworks run for one call by direction, where they are many: each takes at least as long
      as a launch, which an operator that answers in its place does not know.
    - `fewest_entry_bytes`: an entry that any kernel moves has no fewer, whatever the training's type.
    """

    name: str
    title: str
    operator_class: OperatorClass
    features: Mapping[str, str]
    costs: Mapping[Direction, Cost] = field(repr=False)
    roles: Mapping[str, Role] = field(repr=False)
    sums: Mapping[Direction, tuple[Direction, ...]] = field(default_factory=dict, repr=False)
    per_update: bool = False
    is_optional: bool = False
    substitute: Substitute | None = field(default=None, repr=False)
    equal_unless_measured: tuple[str, str] | None = field(default=None, repr=False)
    folded: tuple[str, tuple[str, ...]] | None = field(default=None, repr=False)
    ring_passes: tuple[float, float, float] | None = field(default=None, repr=False)
    is_divided: bool = False
    is_in_place: bool = False
    is_elementwise: bool = False
    is_reduced: bool = False
    is_pairwise: bool = False
    is_sharded: bool = False
    is_on_request: bool = False
    wire: Wire | None = field(default=None, repr=False)
    same_product: Mapping[Direction, tuple[str, ...]] = field(default_factory=dict, repr=False)
    variant_flops: Mapping[str, float] = field(default_factory=dict, repr=False)
    kernels: Mapping[Direction, int] = field(default_factory=dict, repr=False)
    fewest_entry_bytes: int = 1
    divisible: tuple[str, ...] = ()
    backward_slowdown: float = 1.0
    dtype: str = ""
    directions: tuple[Direction, ...] = field(init=False, repr=False)
    forward: tuple[Direction, ...] = field(init=False, repr=False)
    backward: tuple[Direction, ...] = field(init=False, repr=False)
    is_collective: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        own = tuple(direction for direction in self.costs if direction not in self.sums)
        object.__setattr__(self, "directions", own)
        object.__setattr__(self, "is_collective", self.operator_class is OperatorClass.COMMUNICATION)
        object.__setattr__(self, "forward", tuple(one for one in own if not one.is_backward))
        object.__setattr__(self, "backward", tuple(one for one in own if one.is_backward))

    def dtype_in(self, training: str) -> str:
        """The element type that it computes in where `training` is the training's."""
        return self.dtype or training

    def flops(self, direction: Direction, vector: Sequence[float], variant: str = "") -> float:
        """Floating-point operations of one call at a workload vector, called in the way that `variant` says."""
        return self.variant_flops.get(variant, 1.0) * evaluate(
            self.costs[direction].flops, self.named(vector)
        )

    def moved_bytes(self, direction: Direction, vector: Sequence[float], element_bytes: int) -> float:
        """Bytes read plus written by one call (for collectives: the bytes one process puts in), at a vector."""
        return element_bytes * evaluate(self.costs[direction].elements, self.named(vector))

    def least_bytes(self, direction: Direction, vector: Sequence[float], element_bytes: int) -> float:
        """Bytes that any kernel has to read or write at a workload vector."""
        entry_bytes = max(element_bytes, self.fewest_entry_bytes)
        return entry_bytes * evaluate(self.costs[direction].least_elements, self.named(vector))

    def elements(self, vector: Sequence[float]) -> float:
        """Elements of one tensor of an elementwise operator: what it moves in either direction are multiples of it."""
        terms = next(iter(self.costs.values())).elements
        return evaluate(terms, self.named(vector)) / terms[0].coefficient

    def named(self, vector: Sequence[float]) -> dict[str, float]:
        """The entries of a workload vector by feature; UsageError where it has another length."""
        try:
            return dict(zip(self.features, vector, strict=True))
        except ValueError:
            expected = ", ".join(self.features)
            message = f"{self.name}: workload vector has {len(vector)} entries, expected [{expected}]"
            raise UsageError(message) from None


def roles(*rows: tuple[str, str, str]) -> Mapping[str, Role]:
    """Roles from (name, paper's name, title)."""
    return MappingProxyType({name: Role(name, paper_name, title) for name, paper_name, title in rows})


def only_role(paper_name: str, title: str) -> Mapping[str, Role]:
    """The one role of an operator that steps call for one reason."""
    return roles(("", paper_name, title))
