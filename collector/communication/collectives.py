"""The collectives of the table as torch.distributed calls in one group.

`entries` is the input of one process: the buffer of an all-reduce or a message, its shard of an all-gather, its whole
input of a reduce-scatter or an all-to-all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
import torch.distributed as dist

from kernelcast.collector.machine.probe_cpu import available_memory_bytes
from kernelcast.runtime.operators import Operator

Call = Callable[[], object]

# torch 2.13 renamed both and warns about the old names.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The group of this process: its ranks in order, and torch's handle."""

    ranks: tuple[int, ...]
    handle: "dist.ProcessGroup | None"

    @property
    def size(self) -> int:
        """Number of processes."""
        return len(self.ranks)


@dataclass(frozen=True, slots=True)
class Collective:
    """How a collective is called, with the input of a process and a buffer of the entries that it receives.

    A message goes from one process to another; the receiver's time counts.
    """

    call: Callable[[Members, torch.Tensor, torch.Tensor], object]
    received: Callable[[int, int], int] = lambda entries, size: entries  # 0 where the input is overwritten
    is_message: bool = False

    def build(self, members: Members, entries: int, device: torch.device, dtype: torch.dtype) -> Call:
        """A call on buffers of its own."""
        sizes = entries, self.received(entries, members.size)
        return partial(self.call, members, *(torch.zeros(size, device=device, dtype=dtype) for size in sizes))


def _message(members: Members, buffer: torch.Tensor, _: torch.Tensor) -> None:
    """From the first process to the last one."""
    first, last = members.ranks[0], members.ranks[-1]
    if dist.get_rank() == first:
        dist.send(buffer, last, group=members.handle)
    else:
        dist.recv(buffer, first, group=members.handle)


COLLECTIVES: Mapping[str, Collective] = MappingProxyType(
    {
        "all_reduce": Collective(
            lambda members, own, _: dist.all_reduce(own, group=members.handle), lambda *_: 0
        ),
        "all_gather": Collective(
            lambda members, shard, whole: _all_gather(whole, shard, group=members.handle),
            lambda entries, size: entries * size,
        ),
        "reduce_scatter": Collective(
            lambda members, whole, shard: _reduce_scatter(shard, whole, group=members.handle),
            lambda entries, size: entries // size,
        ),
        "all_to_all": Collective(
            lambda members, own, theirs: dist.all_to_all_single(theirs, own, group=members.handle)
        ),
        "point_to_point": Collective(_message, lambda *_: 0, is_message=True),
    }
)
"""How every collective of the table is called, by its name there."""


def check_memory(op: Operator, entries: int, size: int, element_bytes: int, *, processes: int) -> None:
    """Check that this node's memory holds twice the buffers of `processes` processes, each in a group of `size`.

    Twice, because gloo makes copies. The system would kill a process where memory lacks: a MemoryError.
    """
    # Where links carry more entries in larger groups, every process receives the input of all.
    gathers = op.ring_passes is not None and op.ring_passes[1] > 0
    received = entries * (size if gathers else 1)
    needed = 2 * (entries + received) * element_bytes * processes
    free = _free_bytes()
    if free is not None and needed > free:
        raise MemoryError(
            f"{processes} process(es) need {needed / 2**30:.1f} GiB on this node, {free / 2**30:.1f} GiB are free"
        )


def _free_bytes() -> int | None:
    try:
        return available_memory_bytes()
    except (OSError, ValueError, IndexError):
        return None
