"""What a pass is, the unit that schedules put in order."""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What a pass computes."""

    FORWARD = "forward"
    BACKWARD = "backward"  # with a schedule that splits it only the gradients of the inputs
    WEIGHT = "weight"  # gradients of the weights; only with a schedule that splits the backward pass


class Pass(NamedTuple):
    """One pass of one micro-batch through one chunk of the model.

    With `joined` it runs together with the pass listed after it: they start when the inputs of both have arrived, and
    send when the last one ends.
    """

    kind: Kind
    chunk: int
    micro_batch: int
    joined: bool = False


def units(order: Iterable[Pass]) -> Iterator[tuple[Pass, ...]]:
    """The passes of a stage, those together that are joined."""
    unit: list[Pass] = []
    for one in order:
        unit.append(one)
        if not one.joined:
            yield tuple(unit)
            unit = []


def is_pair(unit: tuple[Pass, ...]) -> bool:
    """Whether a forward and a backward pass run together, each computing while the other one communicates."""
    return len(unit) > 1 and unit[0].kind is Kind.FORWARD
