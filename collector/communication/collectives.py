"""The collectives of the table as torch.distributed calls in one group.

`entries` is the input of one process: the buffer of an all-reduce or a message, its shard of an all-gather, its whole
input of a reduce-scatter or an all-to-all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    """How a collective is called. A message goes from one process to another; the receiver's time counts."""

    build: Callable[[Members, int, torch.device, torch.dtype], Call]
    is_message: bool = False


def _buffer(entries: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(entries, device=device, dtype=dtype)


def _all_reduces(members: Members, entries: int, device: torch.device, dtype: torch.dtype) -> Call:
    buffer = _buffer(entries, device, dtype)
    return lambda: dist.all_reduce(buffer, group=members.handle)


def _all_gathers(members: Members, entries: int, device: torch.device, dtype: torch.dtype) -> Call:
    shard = _buffer(entries, device, dtype)
    whole = _buffer(entries * members.size, device, dtype)
    return lambda: _all_gather(whole, shard, group=members.handle)


def _reduce_scatters(members: Members, entries: int, device: torch.device, dtype: torch.dtype) -> Call:
    whole = _buffer(entries, device, dtype)
    shard = _buffer(entries // members.size, device, dtype)
    return lambda: _reduce_scatter(shard, whole, group=members.handle)


def _all_to_alls(members: Members, entries: int, device: torch.device, dtype: torch.dtype) -> Call:
    sent = _buffer(entries, device, dtype)
    received = _buffer(entries, device, dtype)
    return lambda: dist.all_to_all_single(received, sent, group=members.handle)


def _messages(members: Members, entries: int, device: torch.device, dtype: torch.dtype) -> Call:
    """From the first process to the last one."""
    buffer, rank = _buffer(entries, device, dtype), dist.get_rank()
    first, last = members.ranks[0], members.ranks[-1]
    if rank == first:
        return lambda: dist.send(buffer, last, group=members.handle)
    return lambda: dist.recv(buffer, first, group=members.handle)


COLLECTIVES: Mapping[str, Collective] = MappingProxyType(
    {
        "all_reduce": Collective(_all_reduces),
        "all_gather": Collective(_all_gathers),
        "reduce_scatter": Collective(_reduce_scatters),
        "all_to_all": Collective(_all_to_alls),
        "point_to_point": Collective(_messages, is_message=True),
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
