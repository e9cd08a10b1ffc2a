"""Keeps gloo's receiving thread from preempting the thread it then waits for: exchanges would stall for milliseconds.

The thread `gloo_tcp_loop` receives data over TCP. When it wakes it preempts the thread on its core. If that thread
holds the connection's lock, the loop spins on the lock, and the holder gets the core back only at the scheduler's next
tick, milliseconds later: often, where a process has one core (benchmarks/bench_gloo.py). As a batch thread (sched(7))
the loop preempts no other thread; data that arrives while its process computes waits until the next tick at most. The
setting is part of the software fingerprint (`SETTING`).
"""

import os
from contextlib import suppress
from pathlib import Path

SETTING = "gloo=its loop interrupts nobody"
"""Its name in the software fingerprint; with another text, new times would not join stored ones."""

_THREADS = Path("/proc/self/task")
_LOOP = "gloo_tcp_loop"


def can_calm() -> bool:
    """Whether the system has batch threads (Linux) and lets a process choose them."""
    if not hasattr(os, "sched_setscheduler"):
        return False
    try:
        # Sets the present values, to test whether the call is allowed.
        os.sched_setscheduler(0, os.sched_getscheduler(0), os.sched_getparam(0))
    except OSError:
        return False
    return True


def calm_gloo() -> None:
    """Turn this process's gloo loops into batch threads, if it has any; call it after every new process group."""
    if not can_calm():
        return
    for thread in _THREADS.iterdir():
        # Threads may end at any time.
        with suppress(OSError):
            if (thread / "comm").read_text().strip() == _LOOP:
                os.sched_setscheduler(int(thread.name), os.SCHED_BATCH, os.sched_param(0))
