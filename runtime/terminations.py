"""SIGTERM, which a scheduler sends at the end of a job's time, ends work in the same way as Ctrl-C; both can wait."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def terminations_interrupt() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt inside the block, unless it has another handler."""
    # Only the main thread may set handlers; a caller's own handler stays.
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Delay KeyboardInterrupt (SIGINT, SIGTERM within `terminations_interrupt`) to the end of the block; a second one
    raises at once. Interrupting the profiler while it collects may crash.
    """
    held = []
    if threading.current_thread() is threading.main_thread():
        raising = signal.default_int_handler
        held = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is raising]
    came = False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:
            signal.default_int_handler(number, frame)
        came = True

    for number in held:
        signal.signal(number, hold)
    try:
        yield
    finally:
        for number in held:
            signal.signal(number, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt
