"""One operator call of a training step, and the part of the step that its time belongs to."""

from dataclasses import dataclass
from enum import StrEnum

from kernelcast.runtime.operators import OPERATORS, Direction, Shape


class Component(StrEnum):
    """The part of a step that a call's time belongs to."""

    LAYER_FORWARD = "layer_forward"
    LAYER_BACKWARD = "layer_backward"
    ENDS_FORWARD = "ends_forward"  # embedding on the first stage; norm, logits and loss on the last
    ENDS_BACKWARD = "ends_backward"
    SEND_FORWARD = "send_forward"
    SEND_BACKWARD = "send_backward"
    GATHER_FORWARD = "gather_forward"  # ZeRO-3: parameters, beside the computing of the block before
    GATHER_BACKWARD = "gather_backward"
    SCATTER = "scatter"  # ZeRO-2 and 3: gradients, beside the computing of the next block
    ALL_REDUCE = "all_reduce"  # from here on once per update, above once per micro-batch
    OPTIMIZER = "optimizer"
    ALL_GATHER = "all_gather"


ONCE_PER_UPDATE = (Component.ALL_REDUCE, Component.OPTIMIZER, Component.ALL_GATHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCall:
    """`count` calls of one operator with one workload vector.

    `count` is per update for `ONCE_PER_UPDATE` components, per micro-batch for the others. `direction` is the
    regressor that is asked: recomputation asks for forward times inside a backward component.
    """

    operator: str
    direction: Direction
    vector: tuple[int, ...]
    count: int
    component: Component

    @property
    def is_linear_backward(self) -> bool:
        """Whether half of it is the gradient of weights: a linear's backward is two products of equal cost."""
        return self.direction is Direction.BACKWARD and self.operator.endswith("_linear")

    def times(self, factor: int) -> "OperatorCall":
        """The same call, `factor` times as often."""
        return OperatorCall(
            operator=self.operator,
            direction=self.direction,
            vector=self.vector,
            count=self.count * factor,
            component=self.component,
        )


Calls = tuple[OperatorCall, ...]


def call(name: str, direction: Direction, shape: Shape, count: int, component: Component) -> OperatorCall:
    """`count` calls of an operator of the table at `shape`."""
    return OperatorCall(
        operator=name,
        direction=direction,
        vector=OPERATORS[name].workload(shape),
        count=count,
        component=component,
    )


def bucketed(name: str, shape: Shape, component: Component, bucket_entries: int) -> Calls:
    """A data-parallel collective as full buckets of `bucket_entries` and a remainder."""
    entries, *layout = OPERATORS[name].workload(shape)
    full, rest = divmod(entries, bucket_entries)
    sizes = ((bucket_entries, full), (rest, 1 if rest else 0))
    return tuple(
        OperatorCall(
            operator=name, direction=Direction.ONCE, vector=(size, *layout), count=count, component=component
        )
        for size, count in sizes
        if count
    )
