"""Keeps gloo's own thread from interrupting those that it then waits for: exchanges would stall for milliseconds.

A thread of gloo's receives what comes over TCP, `gloo_tcp_loop`. When it wakes it interrupts whoever runs on its core.
If that one holds the lock of the connection, the loop asks for the lock again and again, and the other gets the core
back at the scheduler's next tick only, milliseconds later: often, where a process has one core
(benchmarks/bench_gloo.py). As a batch thread (sched(7)) it interrupts nobody; what it receives while its process
computes waits for the tick at most. The setting is part of the software fingerprint (`SETTING`).
"""

import os
from contextlib import suppress
from pathlib import Path

SETTING = "gloo=its loop interrupts nobody"
"""How the software fingerprint names it."""

_THREADS = Path("/proc/self/task")
_LOOP = "gloo_tcp_loop"


def can_calm() -> bool:
    """Whether the system has batch threads (Linux) and lets a process choose them."""
    if not hasattr(os, "sched_setscheduler"):
        return False
    try:
        # As it is: whether the call is allowed at all.
        os.sched_setscheduler(0, os.sched_getscheduler(0), os.sched_getparam(0))
    except OSError:
        return False
    return True


def calm_gloo() -> None:
    """Make batch threads of this process's loops; to be called after every new process group.

    Without effect where there are none (other backends, an older torch), or where the system forbids it.
    """
    if not can_calm():
        return
    for thread in _THREADS.iterdir():
        # Threads may end meanwhile.
        with suppress(OSError):
            if (thread / "comm").read_text().strip() == _LOOP:
                os.sched_setscheduler(int(thread.name), os.SCHED_BATCH, os.sched_param(0))
