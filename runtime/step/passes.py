"""Passes of one layer for one micro-batch: folds over its ops."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache, wraps
from itertools import chain
from typing import TypeVar

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.step.op import Call, Calls, Op, Ops, Overlap
from kernelcast.runtime.step.sizes import Sizes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Overlapped:
    """Collectives, with what dispatchers launch with them, and the calls that they run under."""

    collectives: Calls
    compute: Calls


@dataclass(frozen=True)
class Pass:
    """One pass of a layer: `calls` run one after the other, and collectives by what they overlap."""

    calls: Calls
    overlapped: Mapping[Overlap, Overlapped]

    @property
    def collectives(self) -> Calls:
        """All of its collectives, exposed or overlapped."""
        overlapped = chain.from_iterable(pair.collectives for pair in self.overlapped.values())
        return tuple(one for one in (*self.calls, *overlapped) if OPERATORS[one.operator].is_collective)


@dataclass(frozen=True)
class Passes:
    """Passes of a layer of `ops`; the ops of a `reference` model run forward before them."""

    ops: Ops
    reference: Ops = ()

    @cached_property
    def forward(self) -> Pass:
        """The forward pass, and before it the reference model's."""
        ops = (*self.reference, *self.ops)
        return self._pass(ops, Op.forward, ops)

    @cached_property
    def backward(self) -> Pass:
        """The backward pass, without what it runs again."""
        return self._pass(self.ops, Op.backward, self.ops)

    def rerun(self, again: Iterable[Op]) -> Pass:
        """A forward pass of some of the ops, which a backward pass runs again."""
        return self._pass(again, Op.forward, self.ops)

    def _pass(self, ops: Iterable[Op], calls_of: Callable[[Op], Calls], among: Ops) -> Pass:
        exposed: list[Call] = []
        overlapped: dict[Overlap, Calls] = {}
        for one in ops:
            calls = calls_of(one)
            if one.overlaps is None:
                exposed += calls
            elif calls:
                overlapped[one.overlaps] = overlapped.get(one.overlaps, ()) + calls
        return Pass(
            tuple(exposed),
            {
                overlap: Overlapped(calls, _under(overlap, calls_of, among))
                for overlap, calls in overlapped.items()
            },
        )


@lru_cache(maxsize=1 << 9)
def passes_of(describe: Callable[[Sizes], Ops], s: Sizes) -> Passes:
    """Passes of a layer of the sizes of one device, remembered."""
    return Passes(describe(s), describe(s.reference) if s.reference else ())


def _under(overlap: Overlap, calls_of: Callable[[Op], Calls], ops: Ops) -> Calls:
    """What computes meanwhile: named ops in one direction, or as much as the layer computes in such a pass."""
    if overlap.another_micro_batch:
        layer = (one for one in ops if one.in_layer and not one.collective and one.overlaps is None)
        return tuple(call for one in layer for call in calls_of(one))
    named = (one for one in ops if one.name in overlap.ops)
    return tuple(
        call
        for one in named
        for call in (*one.forward(), *one.backward())
        if call.direction is overlap.direction
    )


_REMEMBERED = 1 << 9
"""Lists of ops that are remembered, of some ten thousand bytes each."""


class _Remembered:
    """Describes a layer once for the sizes of one device; descriptions for arrays of sizes are not kept."""

    def __init__(self) -> None:
        self._known: list[Callable[[], None]] = []

    def __call__(self, describe: Callable[[Sizes], T]) -> Callable[[Sizes], T]:
        known = lru_cache(maxsize=_REMEMBERED)(describe)
        self._known.append(known.cache_clear)

        @wraps(describe)
        def described(s: Sizes) -> T:
            return known(s) if isinstance(s.tp, int) else describe(s)

        return described

    def forget(self) -> None:
        """Clear the cache of described layers."""
        for clear in self._known:
            clear()


remembered_ops = _Remembered()
