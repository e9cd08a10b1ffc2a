"""What data parallelism calls: the update of a stage, and per block gradients from ZeRO-2 and parameters in ZeRO-3.

Pure functions of hashable arguments, remembered, as in blocks.py.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from kernelcast.runtime.operators import Direction, Shape
from kernelcast.runtime.step.calls import Calls, Component, bucketed, call
from kernelcast.runtime.step.groups import Group

_REMEMBERED = 1 << 11

Role = Literal["first", "middle", "last"]
"""Which optimizer operator a stage asks; a single stage, first and last at once, asks the last one's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Calls of one stage once per update: gradients combined, optimizer, parameters gathered."""

    gradients: Calls
    optimizer: Calls
    gather: Calls

    @property
    def calls(self) -> Calls:
        """All of them, in the order in which they run."""
        return self.gradients + self.optimizer + self.gather


@lru_cache(maxsize=_REMEMBERED)
def update(
    role: Role,
    parameters: int,
    layers: int,
    *,
    dp: int,
    zero: int,
    group: Group,
    bucket_entries: int,
    left_out: frozenset[str] = frozenset(),
) -> Update:
    """The update of a stage with so many parameters and layers on a device (docs/method.md, A step).

    | zero | gradients | optimizer over | parameters |
    |---|---|---|---|
    | 0 | all-reduce | all | |
    | 1 | all-reduce | all (as published: its measured time fits them) | all-gather |
    | 2 | (scattered during the backward passes) | the shard, ceil(parameters / dp) | all-gather |
    | 3 | (scattered during the backward passes) | the shard | (gathered before every use) |

    A data-parallel degree of 1 calls the optimizer alone. With the optimizer go clipping the gradients before it, and
    setting them to zero after it, for the micro-batches of the next step to add into.
    """
    shape = _shape(parameters, layers, dp, group)
    own = shape
    if zero >= 2:
        # A shard is a smaller stage: as many parameters per layer, fewer of both.
        own = _shape(-(-parameters // dp), -(-layers // dp), dp, group)
    names = ("gradient_clip", f"optimizer_{role}_stage", "gradient_zero")
    optimizer = tuple(
        call(name, Direction.ONCE, own, 1, Component.OPTIMIZER) for name in names if name not in left_out
    )
    gradients: Calls = ()
    gather: Calls = ()
    if dp > 1 and zero < 2:
        gradients = bucketed("dp_all_reduce", shape, Component.ALL_REDUCE, bucket_entries)
    if dp > 1 and zero in (1, 2):
        gather = bucketed("dp_all_gather", shape, Component.ALL_GATHER, bucket_entries)
    return Update(gradients=gradients, optimizer=optimizer, gather=gather)


@lru_cache(maxsize=_REMEMBERED)
def block_gather(
    parameters: int, *, dp: int, group: Group, bucket_entries: int, component: Component
) -> Calls:
    """ZeRO-3: the parameters of one block gathered before its pass."""
    if dp == 1 or parameters == 0:
        return ()
    return bucketed("dp_all_gather", _shape(parameters, 1, dp, group), component, bucket_entries)


@lru_cache(maxsize=_REMEMBERED)
def block_scatter(parameters: int, *, dp: int, group: Group, bucket_entries: int) -> Calls:
    """ZeRO-2 and 3: the gradients of one block summed and split after its backward pass."""
    if dp == 1 or parameters == 0:
        return ()
    shape = _shape(parameters, 1, dp, group)
    return bucketed("dp_reduce_scatter", shape, Component.SCATTER, bucket_entries)


def _shape(parameters: int, layers: int, dp: int, group: Group) -> Shape:
    return Shape(
        stage_parameters=parameters,
        stage_layers=layers,
        data_parallel=dp,
        nodes=group.nodes,
        gpus_per_node=group.gpus_per_node,
    )
