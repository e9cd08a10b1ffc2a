"""Ctrl-C waits for the end of a measurement: interrupting the profiler while it collects may crash the process."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Delay KeyboardInterrupt to the end of the block; a second signal raises it at once.

    Raises:
        KeyboardInterrupt: SIGINT arrived during the block, or SIGTERM within `terminations_interrupt`.
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
