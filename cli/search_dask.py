"""A search distributed over a Dask cluster: workers get the bundle and shards, and return their best layouts."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from distributed import Client, as_completed
from distributed.comm.addressing import parse_address, parse_host_port
from distributed.comm.registry import get_backend

from kernelcast.runtime import DataError, Estimator, KernelcastError, UsageError
from kernelcast.runtime.bundle.file import bundle_content, verified_bundle
from kernelcast.runtime.search.partial_result import Found
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.result import SearchResult
from kernelcast.runtime.search.search import answer
from kernelcast.runtime.search.sweep import Report, sweep
from kernelcast.runtime.stack import Stack

SHARDS_PER_WORKER = 4
"""More parts than workers: they take unequally long."""
CONNECT_S = 10.0


def search_on_dask(
    scheduler: str, estimator: Estimator, question: Question, *, report: Report | None = None
) -> SearchResult:
    """`search`, shared over the workers of the cluster at `scheduler`; the answer is the same, in the same order.

    Workers need kernelcast installed, and no file of this machine. `Counts.simulated` and `pruned` may differ: every
    part has its own best so far. UsageError where `scheduler` is no address; DataError where no cluster answers there
    within 10 s, it has no workers, or a worker fails.
    """
    begin = time.perf_counter()
    with _connected(scheduler) as client:
        workers = len(client.nthreads())
        if not workers:
            raise DataError(f"dask scheduler {scheduler}: has no workers")
        shards, asked = workers * SHARDS_PER_WORKER, (estimator.predictor.calibrated, estimator.stack)
        content = client.scatter(bundle_content(estimator.bundle), broadcast=True)
        futures = [
            client.submit(_search_shard, content, question, shard, shards, *asked, pure=False)
            for shard in range(shards)
        ]
        parts: dict[str, Found] = {}
        try:
            for future, part in as_completed(futures, with_results=True, loop=client.loop):
                parts[future.key] = part
                if report is not None:
                    layouts = sum(found.counts.layouts for found in parts.values())
                    report(len(parts), shards, f"{layouts:,} layouts")
        except KernelcastError:
            raise
        except Exception as error:
            raise DataError(
                f"dask scheduler {scheduler}: a worker failed ({type(error).__name__}: {_first_line(error)})"
            ) from error
        finally:
            # Shards left over after a failure or an interrupt.
            client.cancel([future for future in futures if not future.done()])
    found = Found.merged((parts[future.key] for future in futures), question.top)
    return answer(estimator, question, found, begin=begin)


@contextmanager
def _connected(scheduler: str) -> Iterator[Client]:
    try:
        scheme, place = parse_address(scheduler)
        get_backend(scheme)
        parse_host_port(place)
    except ValueError:
        raise UsageError(
            f"dask is {scheduler!r:.80}, expected a scheduler's address such as tcp://127.0.0.1:8786"
        ) from None
    try:
        client = Client(scheduler, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise DataError(
            f"dask scheduler {scheduler}: does not answer within {CONNECT_S:.0f} s ({_first_line(error)})"
        ) from error
    try:
        yield client
    finally:
        client.close()


def _search_shard(
    content: bytes, question: Question, shard: int, shards: int, calibrated: bool, stack: Stack | None
) -> Found:
    return sweep(_estimator(content, calibrated, stack).predictor, question, shard=shard, shards=shards)


@lru_cache(maxsize=1)
def _estimator(content: bytes, calibrated: bool, stack: Stack | None) -> Estimator:
    # A worker keeps its sessions and answers from part to part.
    bundle = verified_bundle(Path("bundle-of-the-search.kcast"), content)
    return Estimator(bundle, calibrated=calibrated, stack=stack)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
