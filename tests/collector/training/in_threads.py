"""Groups of processes in one: every rank is a thread with gloo's collectives, so that a test starts no process."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

_Result = TypeVar("_Result")


def of_every_rank(size: int, run: Callable[[int, dist.ProcessGroup], _Result]) -> list[_Result]:
    """What `run(rank, group)` gives on each rank of a group of `size`."""
    store = dist.HashStore()

    def on_rank(rank: int) -> _Result:
        group = dist.ProcessGroup(store, rank, size)
        gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, timedelta(hours=1))
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        return run(rank, group)

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(on_rank, range(size)))
