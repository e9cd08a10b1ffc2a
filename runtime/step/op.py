"""One op of a layer or of a step: its call, its parameters, what it keeps for the backward pass, what it overlaps.

A layer is one ordered list of ops (layers/); passes, parameters, memory and activation checkpointing are folds over it.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.operators import OPERATORS, Direction, Key, Operator, Vector
from kernelcast.runtime.request.fields import LinearKind, RecomputeModule


class Component(StrEnum):
    """The part of a step that a call's time belongs to; parts of an update have the name of their op."""

    LAYER_FORWARD = "layer_forward"
    LAYER_BACKWARD = "layer_backward"
    ENDS_FORWARD = "ends_forward"  # embedding on the first stage; norm, logits and loss on the last
    ENDS_BACKWARD = "ends_backward"
    SEND_FORWARD = "send_forward"
    SEND_BACKWARD = "send_backward"
    GATHER_FORWARD = "gather_forward"  # ZeRO-3: parameters, while the block before computes
    GATHER_BACKWARD = "gather_backward"
    GATHER_INPUT = "gather_input"  # sequence parallelism: under the product that makes the input's gradient
    OVERLAPPED_FORWARD = "overlapped_forward"  # other collectives that overlap computing
    OVERLAPPED_BACKWARD = "overlapped_backward"
    SCATTER = "scatter"  # ZeRO-2 and 3: gradients, while the next block computes
    ALL_REDUCE = "all_reduce"  # from here on once per update, above once per micro-batch
    TIED_EMBEDDINGS = "tied_embeddings"  # their gradients summed over both ends of the pipeline
    GRADIENT_SCALING = "gradient_scaling"
    GRADIENT_CLIPPING = "gradient_clipping"
    OPTIMIZER = "optimizer"
    GRADIENT_ZEROING = "gradient_zeroing"
    WEIGHT_CAST = "weight_cast"
    ALL_GATHER = "all_gather"


ONCE_PER_UPDATE = frozenset(list(Component)[list(Component).index(Component.ALL_REDUCE) :])
COMPUTED_ONCE = ONCE_PER_UPDATE - {Component.ALL_REDUCE, Component.ALL_GATHER}
"""What the devices of a stage compute between the reduction of gradients and the gather of parameters."""


Number: TypeAlias = int | float | NDArray[np.float64]
"""A size: one number for one device, or float64 [rows] for the devices of many layouts at once."""


class Call(NamedTuple):
    """`count` calls of an operator in a role, at the workload vector `shape`. Ops hold calls without a direction
    (`ONCE`), passes one per direction; recomputation has forward calls in a backward pass.
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


def call(operator: str, *shape: Any, role: str = "", count: Any = 1) -> Call:
    """A call without a direction. With arrays as sizes it is a placeholder: such lists are only summed for bytes."""
    return Call(operator, role, shape, count)


def flag(condition: Any) -> Number:
    """1 where a condition holds, else 0; of a bool, or of bools [rows]."""
    found: Number = condition * 1
    return found


class Matrix(NamedTuple):
    """A linear's weight on one device: k × n, `times` over for local experts, by `columns` of PyTorch's own linears."""

    kind: LinearKind
    k: Number
    n: Number
    times: Number = 1
    columns: tuple[Number, ...] = ()

    @property
    def entries(self) -> Number:
        """Entries of all of them."""
        return self.times * self.k * self.n


class Overlap(NamedTuple):
    """What a collective runs under: the named ops in one direction, or another micro-batch's pass. `in_pieces`: the
    product is cut along the tokens into tp pieces, and one overlaps nothing (TransformerEngine's userbuffers).
    """

    ops: tuple[str, ...] = ()
    direction: Direction = Direction.FORWARD
    in_pieces: bool = False
    another_micro_batch: bool = False

    @property
    def of_weights(self) -> bool:
        """Whether it runs under weight gradients, which zero-bubble schedules compute later."""
        return self.direction is Direction.WEIGHT_GRADIENT


OTHER_MICRO_BATCH = Overlap(another_micro_batch=True)
"""Overlapped with the layer's compute of another micro-batch."""


class Op(NamedTuple):
    """One op of a layer on one device, for one micro-batch.

    - `call`: operator, role and shape; None for what only holds parameters or bytes;
    - `directions`: those that it runs of its operator's, all by default; a frozen weight has no gradient;
    - `collective`: the pass of a collective, or both; empty for ops that compute;
    - `overlaps`: what a collective runs under;
    - `parameters` on the device; expert parallelism spreads parameters of routed experts (`is_expert`); with adapters
      (`is_adapter`) all other parameters are frozen;
    - `weight`: the matrix of a linear that may run in 8 bit;
    - `saves`: bytes kept for the backward pass, without tensors that another op of the list keeps;
    - `needs`: the tensor that its gradient needs, its "input" or its own "output"; empty if it needs none;
    - `late`: bytes kept until a late weight gradient (zero-bubble);
    - `gradients`: bytes of gradients in use while its backward pass runs;
    - `reruns`: its kernels compute the forward pass again in the backward pass;
    - `module`: Megatron-LM's name of the module, for selective checkpointing (`--recompute-modules`);
    - `in_layer`: whether it belongs to a transformer layer, which full checkpointing runs again.
    """

    name: str
    call: Call | None = None
    directions: tuple[Direction, ...] | None = None
    collective: Literal["", "forward", "backward", "both"] = ""
    overlaps: Overlap | None = None
    parameters: Number = 0
    is_expert: bool = False
    is_adapter: bool = False
    weight: Matrix | None = None
    saves: Number = 0
    needs: Literal["", "input", "output"] = ""
    late: Number = 0
    gradients: Number = 0
    reruns: bool = False
    module: RecomputeModule | Literal[""] = ""
    in_layer: bool = False

    def times(self, count: int, prefix: str) -> "Op":
        """The same op in a part that occurs `count` times; names of that part begin with `prefix`."""
        overlaps = self.overlaps
        if overlaps is not None:
            overlaps = overlaps._replace(ops=tuple(prefix + name for name in overlaps.ops))
        weight = self.weight
        # By position: `_replace` takes four times as long, and a search describes thousands of layers.
        return Op(
            prefix + self.name,
            None if self.call is None else self.call.times(count),
            self.directions,
            self.collective,
            overlaps,
            count * self.parameters,
            self.is_expert,
            self.is_adapter,
            None if weight is None else weight._replace(times=count * weight.times),
            count * self.saves,
            *self[10:],
        )

    def forward(self) -> Calls:
        """Calls of its forward pass, none of them 0 times."""
        return self._in_pass("forward", _FORWARD)

    def backward(self) -> Calls:
        """Calls of its backward pass."""
        again = self.forward() if self.reruns else ()
        return (*again, *self._in_pass("backward", _BACKWARD))

    def _in_pass(self, name: str, directions_of: Callable[[Operator], tuple[Direction, ...]]) -> Calls:
        call = self.call
        if call is None or not call.count:
            return ()
        if self.collective:
            return (call,) if self.collective in (name, "both") else ()
        own, directions = self.directions, directions_of(OPERATORS[call.operator])
        if own is not None:
            directions = tuple(one for one in directions if one in own)
        elif directions == _ONCE:  # as the op lists it
            return (call,)
        operator, role, shape, count, _ = call
        return tuple([Call(operator, role, shape, count, one) for one in directions])


_ONCE = (Direction.ONCE,)
_FORWARD, _BACKWARD = attrgetter("forward"), attrgetter("backward")

Ops = tuple[Op, ...]


def op(name: str, operator: str, *shape: Any, role: str = "", count: Any = 1, **others: Any) -> Op:
    """An op that calls `operator` at `shape`, with the other fields of `Op` by name."""
    return Op(name, Call(operator, role, shape, count), **others)


def computing(ops: Iterable[Op]) -> Calls:
    """The calls of ops that compute, without a direction; some are called 0 times."""
    return tuple(one.call for one in ops if one.call is not None and not one.collective)


def saved_bytes(ops: Iterable[Op]) -> Number:
    """Bytes that some ops keep for the backward pass."""
    total: Number = 0
    for one in ops:
        total = total + one.saves
    return total


def until_last_needed(ops: Sequence[Op]) -> Sequence[Op]:
    """The ops up to the last tensor that a backward pass needs: where torch's non-reentrant checkpoints stop."""
    last = max((index for index, one in enumerate(ops) if one.needs), default=-1)
    return ops[: last + (ops[last].needs == "output")] if last >= 0 else ()
