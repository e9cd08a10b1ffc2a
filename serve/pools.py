"""Threads that compute while the server keeps answering; their queue is bounded."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from prometheus_client import Gauge

T = TypeVar("T")


class Busy(Exception):
    """No capacity: the queue is full, or the work waited too long."""


class Pool:
    """Worker threads with a queue of bounded length and a time limit per question."""

    def __init__(self, name: str, *, workers: int, waiting: int, time_s: float, pending: Gauge) -> None:
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix=name)
        self._most = workers + waiting
        self._time_s = time_s
        self._count = 0
        self._pending = pending.labels(name)

    async def run(self, work: Callable[[], T]) -> T:
        """Do the work in a thread.

        Raises:
            Busy: it was not begun, or was not done in time (then it goes on, and its result is dropped).
        """
        if self._count >= self._most:
            raise Busy(f"{self._most} questions are being answered or wait, expected fewer at a time")
        future = self._executor.submit(work)
        self._change(1)
        loop = asyncio.get_running_loop()
        # Counted until the thread is free again, even when the client has stopped waiting.
        future.add_done_callback(lambda _: _call(loop, lambda: self._change(-1)))
        try:
            async with asyncio.timeout(self._time_s):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise Busy(f"no answer within {self._time_s:g} s, expected fewer or smaller questions") from None

    def close(self) -> None:
        """Drop queued work; running work ends by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _change(self, by: int) -> None:
        self._count += by
        self._pending.set(self._count)


def _call(loop: asyncio.AbstractEventLoop, change: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(change)
