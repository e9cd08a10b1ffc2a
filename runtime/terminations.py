"""SIGTERM, which a scheduler sends at the end of a job's time, ends work in the same way as Ctrl-C."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
