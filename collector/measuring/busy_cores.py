"""Load on the other cores of a CPU while one process measures under sustained load: all cores share power and heat.

One process with a thread per core multiplies matrices that fit into the core's own caches: the clocks are as on a
busy machine, and the operator has the memory to itself. Contention for memory is measured with companions
(companions.py); both can be combined.
"""

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Self

import torch

from kernelcast.collector.measuring.core_binding import bind
from kernelcast.collector.measuring.helper_process import Closeable, HelperProcess, ignore_signals

_SIZE = 384
"""Rows of the products: 1.7 MB and about a millisecond, so that launching them costs next to nothing."""
_NAME = "process on the other cores"


class BusyCores(Closeable):
    """Keeps cores busy until it is closed; each of `cores` is one logical CPU, or () for a thread that is not bound."""

    def __init__(self, cores: Sequence[tuple[int, ...]]) -> None:
        self._cores = tuple(cores)
        self._process: HelperProcess | None = None

    def __enter__(self) -> Self:
        self.check()
        return self

    def check(self) -> None:
        """Start the process, or check that it still runs.

        Raises:
            CompanionError: it has ended, or does not start; the next call starts a new one.
        """
        if not self._cores:
            return
        try:
            if self._process is None:
                self._process = HelperProcess(_NAME, keep_busy, self._cores)
                self._process.answer()
            else:
                self._process.check()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.close()
            self._process = None


def keep_busy(connection: Connection, cores: Sequence[tuple[int, ...]]) -> None:
    """Compute on every core until the other end of the pipe closes."""
    ignore_signals()
    torch.set_num_threads(1)
    for core in cores:
        threading.Thread(target=_multiply, args=(core,), daemon=True).start()
    with suppress(EOFError, OSError):
        connection.send("ready")
        connection.recv()
    os._exit(0)  # computing threads cannot be joined


def _multiply(core: tuple[int, ...]) -> None:
    bind(core)
    torch.set_num_threads(1)  # a setting of each thread, where OpenMP is used
    left, right = torch.randn(_SIZE, _SIZE), torch.randn(_SIZE, _SIZE)
    out = torch.empty(_SIZE, _SIZE)
    while True:
        torch.mm(left, right, out=out)
