"""A search shared over the workers of a Dask cluster: the bundle's bytes go to them, what they found comes back."""

import time
from functools import lru_cache
from pathlib import Path

from distributed import Client, as_completed

from kernelcast.runtime import DataError, Estimator
from kernelcast.runtime.bundle import read_content, verified_bundle
from kernelcast.runtime.search import Question, SearchResult
from kernelcast.runtime.search.found import Found
from kernelcast.runtime.search.search import answer
from kernelcast.runtime.search.sweep import Report, sweep

SHARDS_PER_WORKER = 4
"""More parts than workers: they take unequally long."""
CONNECT_S = 10.0


def search_on_dask(
    scheduler: str, bundle: str, estimator: Estimator, question: Question, *, report: Report | None = None
) -> SearchResult:
    """`search`, shared over the workers of the cluster at `scheduler`; the answer is the same, in the same order.

    Workers need kernelcast installed, and no file of this machine. `Counts.simulated` and `pruned` may differ:
    every part has its own best so far.

    Raises:
        DataError: no cluster answers at the address within 10 s, it has no workers, or its workers fail.
    """
    begin = time.perf_counter()
    try:
        client = Client(scheduler, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise DataError(
            f"dask scheduler {scheduler}: does not answer within {CONNECT_S:.0f} s ({_first_line(error)})"
        ) from error
    try:
        workers = len(client.scheduler_info()["workers"])
        if not workers:
            raise DataError(f"dask scheduler {scheduler}: has no workers")
        shards = workers * SHARDS_PER_WORKER
        content = client.scatter(read_content(Path(bundle)), broadcast=True)
        futures = [
            client.submit(_part, content, question, shard, shards, pure=False) for shard in range(shards)
        ]
        parts: dict[int, Found] = {}
        for future, part in as_completed(futures, with_results=True):
            parts[futures.index(future)] = part
            if report is not None:
                layouts = sum(found.counts.layouts for found in parts.values())
                report(len(parts), shards, f"{layouts:,} layouts")
    finally:
        client.close()
    found = Found.merged((parts[shard] for shard in range(shards)), question.top)
    return answer(estimator, question, found, begin=begin)


def _part(content: bytes, question: Question, shard: int, shards: int) -> Found:
    return sweep(_estimator(content).predictor, question, shard=shard, shards=shards)


@lru_cache(maxsize=1)
def _estimator(content: bytes) -> Estimator:
    # A worker keeps its sessions and answers from part to part.
    return Estimator(verified_bundle(Path("sent-by-the-search.kcast"), content))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
