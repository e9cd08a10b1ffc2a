"""A process that works while another one measures: started by it, told over a pipe what to do, ended with it.

`BusyCores` is load on the other cores of a CPU while one process measures under sustained load, because all cores share
power and heat. One process with a thread per core multiplies matrices that fit into the core's own caches: the clocks
are as on a busy machine, and the operator has the memory to itself. Contention for memory is measured with companions
(companions.py); both can be combined.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

import torch

from kernelcast.collector.measuring.core_binding import bind
from kernelcast.collector.measuring.outcome import Untimed
from kernelcast.store import Status

_ANSWER_SECONDS = 300.0
"""To import torch, build an operator and warm up; to end an iteration."""
_END_SECONDS = 5.0


class CompanionError(Untimed):
    """Another process did not work during the whole measurement; the message is stored with the sample."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(Status.FAILED, f"{name}: {reason}")
        self.reason = reason


class Closeable:
    """Base of classes whose `close` a with statement calls."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release everything that was started."""
        raise NotImplementedError


class HelperProcess:
    """Runs `target(connection, *arguments)`; errors begin with `name`.

    The program must be importable (`if __name__ == "__main__":`): the process is spawned rather than forked, which
    torch's threads would not survive.
    """

    def __init__(self, name: str, target: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._name = name
        self._process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
        self._process.start()
        # Only the helper may hold its end: otherwise its death would go unnoticed.
        theirs.close()

    def check(self) -> None:
        """CompanionError where it has ended."""
        if not self._process.is_alive():
            raise CompanionError(self._name, f"ended, {_exit_of(self._process.exitcode)}")

    def tell(self, message: object) -> None:
        """Send a message; where the process has ended, `answer` says how."""
        try:
            self._connection.send(message)
        except OSError:
            return

    def answer(self) -> str:
        """The next message; CompanionError where the process has ended, or does not answer."""
        try:
            if self._connection.poll(_ANSWER_SECONDS):
                return str(self._connection.recv())
        except (EOFError, OSError):
            self._process.join(_END_SECONDS)
            raise CompanionError(self._name, f"ended, {_exit_of(self._process.exitcode)}") from None
        raise CompanionError(self._name, f"no answer within {_ANSWER_SECONDS:g} s")

    def close(self) -> None:
        """End the process; it holds nothing that could be left half-done."""
        self._connection.close()
        self._process.kill()
        self._process.join()


def ignore_signals() -> None:
    """Ctrl-C and a scheduler's SIGTERM reach every process of a job; the one that measures ends its helpers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _exit_of(exit_code: int | None) -> str:
    """Signal or exit code of a process that ended."""
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}"
    # A system that runs out of memory sends SIGKILL.
    return f"signal {-exit_code}" + (" (out of memory?)" if exit_code == -9 else "")


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
        """Start the process, or check that it still runs: CompanionError if not, and the next call starts a new one."""
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
