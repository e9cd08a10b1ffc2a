"""The other cores of a CPU compute while one process measures under sustained load: all of them share power and heat.

One process with a thread for each core multiplies matrices that fit into the core's own caches, so that the clocks are
those of a busy machine while the memory is left to the operator. Sharing the memory is what levels of processes measure
(companions.py); both go together.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Self

import torch

from kernelcast.collector.measuring.companions import CompanionError, how_it_ended
from kernelcast.collector.measuring.core_binding import bind

_SIZE = 384
"""Rows of the products: 1.7 MB, and a millisecond, so that starting them is next to nothing."""
_START_SECONDS = 300.0
_READY = "ready"


class BusyCores:
    """Keeps cores busy until it is closed; each of `cores` is one logical CPU, or () for a thread that is not bound."""

    def __init__(self, cores: Sequence[tuple[int, ...]]) -> None:
        self._cores = tuple(cores)
        self._started: tuple[BaseProcess, Connection] | None = None

    def __enter__(self) -> Self:
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def count(self) -> int:
        """How many cores."""
        return len(self._cores)

    def check(self) -> None:
        """Start what is not running.

        Raises:
            CompanionError: it had ended, or does not start; the next call starts it anew.
        """
        if not self._cores:
            return
        if self._started is None:
            self._start()
            return
        process, _ = self._started
        if not process.is_alive():
            self.close()
            raise CompanionError(f"process on the other cores: ended, {how_it_ended(process.exitcode)}")

    def close(self) -> None:
        """End it."""
        if self._started is None:
            return
        process, connection = self._started
        self._started = None
        connection.close()
        process.kill()  # it holds nothing that could be left half-done
        process.join()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=keep_busy, args=(theirs, self._cores), daemon=True)
        process.start()
        theirs.close()
        self._started = process, ours
        try:
            if ours.poll(_START_SECONDS) and ours.recv() == _READY:
                return
        except (EOFError, OSError):
            process.join()
        except BaseException:
            self.close()
            raise
        code = process.exitcode
        self.close()
        raise CompanionError(f"process on the other cores: does not start, {how_it_ended(code)}")


def keep_busy(connection: Connection, cores: Sequence[tuple[int, ...]]) -> None:
    """Compute on every core until the other end of the pipe closes."""
    # Ctrl-C and a scheduler's SIGTERM reach every process of a job; the one that measures says when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.set_num_threads(1)
    for core in cores:
        threading.Thread(target=_multiply, args=(core,), daemon=True).start()
    with suppress(EOFError, OSError):
        connection.send(_READY)
        connection.recv()
    os._exit(0)  # threads that compute do not hear of an end


def _multiply(core: tuple[int, ...]) -> None:
    bind(core)
    torch.set_num_threads(1)  # a thread's own setting, where OpenMP is used
    left, right = torch.randn(_SIZE, _SIZE), torch.randn(_SIZE, _SIZE)
    out = torch.empty(_SIZE, _SIZE)
    while True:
        torch.mm(left, right, out=out)
