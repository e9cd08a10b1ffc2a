"""Groups of processes in one: every rank is a thread with gloo's collectives, so that a test starts no process."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist

_Result = TypeVar("_Result")


def _joined(store: dist.Store, rank: int, size: int) -> dist.ProcessGroup:
    group = dist.ProcessGroup(store, rank, size)
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, timedelta(hours=1))
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    return group


def of_every_rank(size: int, run: Callable[[int, dist.ProcessGroup], _Result]) -> list[_Result]:
    """What `run(rank, group)` gives on each rank of a group of `size`."""
    return of_every_rank_in_groups(size, lambda rank, of: run(rank, of(tuple(range(size)))))


def of_every_rank_in_groups(
    size: int, run: Callable[[int, Callable[[tuple[int, ...]], Any]], _Result]
) -> list[_Result]:
    """What `run(rank, of)` gives on each rank; `of(ranks)` is the group of some of them, None for the others."""
    store = dist.HashStore()

    def on_rank(rank: int) -> _Result:
        @cache
        def of(ranks: tuple[int, ...]) -> Any:
            inside = rank in ranks
            return (
                _joined(dist.PrefixStore(str(ranks), store), ranks.index(rank), len(ranks))
                if inside
                else None
            )

        return run(rank, of)

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(on_rank, range(size)))
