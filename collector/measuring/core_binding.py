"""Runs a process on cores of its own, as `mpirun --bind-to core` and Slurm's task/affinity plugin do.

Left to the system, processes that exchange data wander over the cores of a node, and a thread of gloo's may wait
several milliseconds for a core on which another process computes: a step then takes what the scheduler made of it,
which no measurement of its operators can tell. The setting is part of the software fingerprint (`SETTING`).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

SETTING = "binding=cores of its own"
"""How the software fingerprint names it."""


def can_bind() -> bool:
    """Whether processes can be bound here: Linux has the call, macOS and Windows do not."""
    return hasattr(os, "sched_setaffinity")


def own_cores(number: int, processes: int, *, threads: int) -> tuple[int, ...]:
    """Logical CPUs of process `number` of as many on this node, one for each of its threads.

    Empty, for no binding, where they cannot be told: there are fewer CPUs than threads, which is also what a process
    sees that its launcher has bound already.
    """
    if not can_bind():
        return ()
    allowed = sorted(os.sched_getaffinity(0))
    if processes * threads > len(allowed):
        return ()
    return tuple(allowed[number * threads : (number + 1) * threads])


def bind(cores: tuple[int, ...]) -> None:
    """Let this thread, and all that it starts from now on, run on `cores` alone; none is no binding."""
    if cores:
        os.sched_setaffinity(0, cores)


@contextmanager
def bound(cores: tuple[int, ...]) -> Iterator[None]:
    """Like `bind`, until the block ends."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    bind(cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
