"""The collectives of runtime/operators.py as torch.distributed calls, on buffers of a given number of entries.

`entries` is what one process puts in: the buffer of an all-reduce or a message, its shard of an all-gather, its whole
input of a reduce-scatter.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
import torch.distributed as dist

Call = Callable[[], object]

# torch 2.13 renamed both and warns about the old names.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def _buffer(entries: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(entries, device=device, dtype=dtype)


def _build_all_reduce(entries: int, device: torch.device, dtype: torch.dtype) -> Call:
    buffer = _buffer(entries, device, dtype)
    return lambda: dist.all_reduce(buffer)


def _build_all_gather(entries: int, device: torch.device, dtype: torch.dtype) -> Call:
    shard = _buffer(entries, device, dtype)
    whole = _buffer(entries * dist.get_world_size(), device, dtype)
    return lambda: _all_gather(whole, shard)


def _build_reduce_scatter(entries: int, device: torch.device, dtype: torch.dtype) -> Call:
    whole = _buffer(entries, device, dtype)
    shard = _buffer(entries // dist.get_world_size(), device, dtype)
    return lambda: _reduce_scatter(shard, whole)


def _build_point_to_point(entries: int, device: torch.device, dtype: torch.dtype) -> Call:
    """First process to the last one; those between have nothing to do."""
    buffer, rank, last = _buffer(entries, device, dtype), dist.get_rank(), dist.get_world_size() - 1
    if rank == 0:
        return lambda: dist.send(buffer, last)
    if rank == last:
        return lambda: dist.recv(buffer, 0)
    return lambda: None


COLLECTIVES: Mapping[str, Callable[[int, torch.device, torch.dtype], Call]] = MappingProxyType(
    {
        "all_reduce": _build_all_reduce,
        "all_gather": _build_all_gather,
        "reduce_scatter": _build_reduce_scatter,
        "point_to_point": _build_point_to_point,
    }
)
"""Builder of every collective that an operator names."""
