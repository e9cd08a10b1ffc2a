"""A process that works while another one measures: started by it, told over a pipe what to do, ended with it."""

import multiprocessing
import signal
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

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
        """Raises:
        CompanionError: it has ended.
        """
        if not self._process.is_alive():
            raise CompanionError(self._name, f"ended, {_exit_of(self._process.exitcode)}")

    def tell(self, message: object) -> None:
        """Send a message; where the process has ended, `answer` says how."""
        try:
            self._connection.send(message)
        except OSError:
            return

    def answer(self) -> str:
        """The next message.

        Raises:
            CompanionError: the process has ended, or does not answer.
        """
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
