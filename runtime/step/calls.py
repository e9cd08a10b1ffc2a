"""One operator call of a training step, and the part of the step that its time belongs to."""

from collections.abc import Callable, Iterable
from enum import StrEnum
from operator import attrgetter
from typing import Any, NamedTuple

from kernelcast.runtime.operators import OPERATORS, Direction, Key, Operator, Vector


class Component(StrEnum):
    """The part of a step that a call's time belongs to."""

    LAYER_FORWARD = "layer_forward"
    LAYER_BACKWARD = "layer_backward"
    ENDS_FORWARD = "ends_forward"  # embedding on the first stage; norm, logits and loss on the last
    ENDS_BACKWARD = "ends_backward"
    SEND_FORWARD = "send_forward"
    SEND_BACKWARD = "send_backward"
    GATHER_FORWARD = "gather_forward"  # ZeRO-3: parameters, while the block before computes
    GATHER_BACKWARD = "gather_backward"
    GATHER_INPUT = "gather_input"  # sequence parallelism: beside the product that makes the input's gradient
    BESIDE_FORWARD = "beside_forward"  # tensor parallelism that overlaps: beside the product it belongs to
    BESIDE_BACKWARD = "beside_backward"
    SCATTER = "scatter"  # ZeRO-2 and 3: gradients, while the next block computes
    ALL_REDUCE = "all_reduce"  # from here on once per update, above once per micro-batch
    OPTIMIZER = "optimizer"
    ALL_GATHER = "all_gather"


ONCE_PER_UPDATE = (Component.ALL_REDUCE, Component.OPTIMIZER, Component.ALL_GATHER)


class Call(NamedTuple):
    """`count` calls of an operator in a role, at the workload vector `shape`.

    Layers list their calls without a direction (`ONCE`); `forward` and `backward` give those of a pass. A direction
    is the regressor that is asked: recomputation asks for forward times inside a backward pass.
    """

    operator: str
    role: str
    shape: Vector
    count: int = 1  # type: ignore[assignment]  # a tuple's own method of this name is not needed
    direction: Direction = Direction.ONCE

    @property
    def key(self) -> Key:
        """The regressor that answers."""
        return self.operator, self.direction

    def times(self, factor: int) -> "Call":
        """The same call, `factor` times as often."""
        if factor == 1:
            return self
        return Call(self.operator, self.role, self.shape, self.count * factor, self.direction)


Calls = tuple[Call, ...]


class Beside(NamedTuple):
    """A collective, and what computes while it runs.

    `in_pieces`: the product is cut along the tokens into tp pieces, each of which runs while another one is on its way,
    so one of tp pieces runs beside nothing. `of_weights`: what computes are gradients of weights, which zero-bubble
    computes later. `of_another`: what computes belongs to another micro-batch.
    """

    collective: Calls = ()
    compute: Calls = ()
    component: Component = Component.BESIDE_BACKWARD
    in_pieces: bool = False
    of_weights: bool = False
    of_another: bool = False

    def times(self, factor: int) -> "Beside":
        """The same, `factor` times as often."""
        if factor == 1:
            return self
        collective, compute = (
            (one.times(factor) for one in calls) for calls in (self.collective, self.compute)
        )
        return self._replace(collective=tuple(collective), compute=tuple(compute))


def call(
    operator: str, *shape: Any, role: str = "", count: Any = 1, direction: Direction = Direction.ONCE
) -> Call:
    """A call as layers list it. Sizes are numbers, or arrays where only parameters and bytes are asked.

    With a `direction`, it has no other one: weights that are not trained have no gradient.
    """
    return Call(operator, role, shape, count, direction)


def forward(calls: Iterable[Call]) -> Calls:
    """What a forward pass runs of a layer's calls; collectives have one time."""
    return _directed(calls, _FORWARD)


def backward(calls: Iterable[Call]) -> Calls:
    """What a backward pass runs of a layer's calls: every operator's backward directions."""
    return _directed(calls, _BACKWARD)


_FORWARD, _BACKWARD = attrgetter("forward"), attrgetter("backward")


def _directed(calls: Iterable[Call], directions_of: Callable[[Operator], tuple[Direction, ...]]) -> Calls:
    # A search makes millions of them.
    found = []
    for operator, role, shape, count, only in calls:
        if count:
            for direction in directions_of(OPERATORS[operator]):
                if only is Direction.ONCE or only is direction:
                    found.append(Call(operator, role, shape, count, direction))
    return tuple(found)
