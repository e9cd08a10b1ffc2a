"""Passes of one layer for one micro-batch: folds over its ops."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.step.op import Call, Calls, Op, Ops, Overlap
from kernelcast.runtime.step.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Overlapped:
    """Collectives and the calls that they run under."""

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
        exposed = (one for one in self.calls if OPERATORS[one.operator].is_collective)
        return (*exposed, *(one for pair in self.overlapped.values() for one in pair.collectives))


@dataclass(frozen=True)
class Passes:
    """Passes of a layer of `ops`."""

    ops: Ops

    @cached_property
    def forward(self) -> Pass:
        """The forward pass."""
        return self._pass(self.ops, Op.forward)

    @cached_property
    def backward(self) -> Pass:
        """The backward pass, without what it runs again."""
        return self._pass(self.ops, Op.backward)

    def rerun(self, again: Iterable[Op]) -> Pass:
        """A forward pass of some of the ops, which a backward pass runs again."""
        return self._pass(again, Op.forward)

    def _pass(self, ops: Iterable[Op], calls_of: Callable[[Op], Calls]) -> Pass:
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
                overlap: Overlapped(calls, self._under(overlap, calls_of))
                for overlap, calls in overlapped.items()
            },
        )

    def _under(self, overlap: Overlap, calls_of: Callable[[Op], Calls]) -> Calls:
        """What computes meanwhile: named ops in one direction, or as much as the layer computes in such a pass."""
        if overlap.another_micro_batch:
            layer = (one for one in self.ops if one.in_layer and not one.collective)
            return tuple(call for one in layer for call in calls_of(one))
        named = (one for one in self.ops if one.name in overlap.ops)
        return tuple(
            call
            for one in named
            for call in (*one.forward(), *one.backward())
            if call.direction is overlap.direction
        )


@lru_cache(maxsize=1 << 9)
def passes_of(describe: Callable[[Sizes], Ops], s: Sizes) -> Passes:
    """Passes of a layer of the sizes of one device, remembered."""
    return Passes(describe(s))
