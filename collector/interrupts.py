"""Ctrl-C waits for the end of a measurement: a profiler that is interrupted while it collects may crash the process."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold a SIGINT back until the block has ended, then raise it; a second one is raised at once.

    Raises:
        KeyboardInterrupt: SIGINT came meanwhile.
    """
    # Only the main thread may set handlers, and a caller's own is left alone.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.default_int_handler:
        yield
        return
    came = False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:
            signal.default_int_handler(number, frame)
        came = True

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if came:
        raise KeyboardInterrupt
