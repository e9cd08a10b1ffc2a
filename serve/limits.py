"""Limits of one request and of concurrent requests, and the pools of threads that keep them."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from prometheus_client import Gauge


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the server.

    - `max_body_bytes` of one request, which must arrive within `body_s`, or later at 16 KiB/s or more.
    - `max_search_layouts` that a search may evaluate.
    - `time_s`: a request that waits longer is refused, a search that takes longer ends.
    - `workers` threads compute, and one more searches; up to `waiting` requests queue for each of the two, and
      further ones are refused. Two, so that a long question does not delay the others; more would only take turns, and
      delay repeated questions.
    - `connections` that are open at once; the head of a request must arrive within `head_s`.
    - A layout of more than `small_chunks` chunks (pp · virtual stages) is computed in a pool of its own, and a layout
      of more than `most_chunks` is refused: time and answer (10 kB a chunk) grow with them.
    - `answer_bytes` of answers that clients have not read yet.
    """

    max_body_bytes: int = 1 << 20
    body_s: float = 10.0
    max_search_layouts: int = 200_000
    time_s: float = 30.0
    workers: int = field(default_factory=lambda: min(2, len(os.sched_getaffinity(0))))
    waiting: int = 128
    connections: int = 256
    head_s: float = 10.0
    small_chunks: int = 128
    most_chunks: int = 1024
    answer_bytes: int = 128 << 20


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
            raise Busy(f"{self._most} requests are being answered or wait, expected fewer at a time")
        future = self._executor.submit(work)
        self._change(1)
        loop = asyncio.get_running_loop()

        def done(_: object) -> None:  # counted until then, even when the client has stopped waiting
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._change, -1)

        future.add_done_callback(done)
        try:
            async with asyncio.timeout(self._time_s):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise Busy(f"no answer within {self._time_s:g} s, expected fewer or smaller questions") from None

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _change(self, by: int) -> None:
        self._count += by
        self._pending.set(self._count)
