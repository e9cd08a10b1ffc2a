"""Independent tasks on several cores, in freshly started processes."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import TypeVar

from kernelcast.runtime import DataError

# Each worker holds the libraries that fit, some hundred MB.
_MOST_WORKERS = 8

Task = TypeVar("Task")
Done = TypeVar("Done")


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def each(function: Callable[[Task], Done], tasks: Sequence[Task], *, jobs: int) -> Iterator[tuple[int, Done]]:
    """Yield (number of the task, result) as tasks end; with one job in order, in this process, else in spawned ones:
    `function`, tasks and program must be importable. DataError where a worker was killed; and any error of `function`.
    """
    jobs = min(jobs, len(tasks), _MOST_WORKERS)
    if jobs <= 1:
        for number, task in enumerate(tasks):
            yield number, function(task)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_end_with_the_parent) as pool:
        numbers = {pool.submit(function, task): number for number, task in enumerate(tasks)}
        try:
            for future in as_completed(numbers):
                yield numbers[future], future.result()
        except BrokenProcessPool as error:
            raise DataError("a worker process was killed (out of memory?)") from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _end_with_the_parent() -> None:
    """End a worker silently on Ctrl-C, and when its parent process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
