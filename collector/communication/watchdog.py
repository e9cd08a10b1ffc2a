"""Ends a process that waits forever for others: torch holds its main thread then, and no signal is handled."""

import os
import select
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

INTERRUPTED = 130

# Time to obey a signal: the measurement of the current point ends first, in about a second.
_GRACE_S = 5.0
# Between the processes of a node: the first one prints the message and its launcher ends the others.
_STAGGER_S = 1.0


class Watchdog:
    """Use it in a with statement, in every process; `heard` restarts the timeout of `timeout_s`.

    SIGINT and SIGTERM set `interrupted`, read between points; a slow point or a second signal ends the process.
    """

    def __init__(self, timeout_s: float, *, local_rank: int, silent: bool = False) -> None:
        self.interrupted = False
        self._timeout_s = timeout_s
        self._stagger_s = _STAGGER_S * min(local_rank, 10)
        self._speaks_of_signals = local_rank == 0 and not silent
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kernelcast-watchdog", daemon=True)
        self._usual: dict[int, Any] = {}
        self._usual_wakeup = -1
        self.heard()

    def heard(self) -> None:
        """Restart the timeout after contact with the others."""
        self._deadline = time.monotonic() + self._timeout_s + self._stagger_s

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            # The byte is written at once, whatever the main thread does; the handler itself is empty.
            self._usual_wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            for number in (signal.SIGINT, signal.SIGTERM):
                self._usual[number] = signal.signal(number, _nothing)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._usual:
            signal.set_wakeup_fd(self._usual_wakeup)
            for number, handler in self._usual.items():
                signal.signal(number, handler)
        os.write(self._write, b"\0")
        self._thread.join()
        os.close(self._read)
        os.close(self._write)

    def _watch(self) -> None:
        give_up: float | None = None
        while not self._over.is_set():
            left_s = (give_up or self._deadline) - time.monotonic()
            ready, _, _ = select.select([self._read], [], [], max(0.0, left_s))
            if self._over.is_set():
                return
            if ready:
                signals = len(os.read(self._read, 64))
                # Launchers may send the same signal twice in a row; a user's second one comes later.
                second = give_up is not None and time.monotonic() > give_up - _GRACE_S + 0.5
                self.interrupted = True
                if signals and second:
                    self._end_interrupted()
                give_up = give_up or time.monotonic() + _GRACE_S
            if give_up is not None and time.monotonic() > give_up:
                self._end_interrupted()
            if give_up is None and time.monotonic() > self._deadline:
                _end(
                    "kernelcast: error: collect comm: nothing was heard from the other processes for "
                    f"{self._timeout_s:g} s (--timeout); measured points are stored",
                    1,
                )

    def _end_interrupted(self) -> None:
        _end(
            "kernelcast: interrupted; measured points are stored" if self._speaks_of_signals else "",
            INTERRUPTED,
        )


def _nothing(number: int, frame: FrameType | None) -> None:
    """An empty signal handler: the wake-up descriptor notifies the watchdog's thread."""


def _end(text: str, status: int) -> None:
    """End this process without clean-up, which would wait for the others."""
    if text:
        clear = "\r\033[2K" if sys.stderr.isatty() else ""  # a progress bar's line
        os.write(2, f"{clear}{text}\n".encode())
    os._exit(status)
