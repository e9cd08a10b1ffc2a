"""Runs a process on cores of its own, as `mpirun --bind-to core` and Slurm's task/affinity plugin do.

Left to the system, processes that exchange data wander over the cores of a node, and a thread of gloo's may wait
several milliseconds for a core on which another process computes: a step then takes what the scheduler made of it,
which no measurement of its operators can tell. The setting is part of the software fingerprint (`SETTING`).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernelcast.collector.machine.probe_cpu import available_cores

SETTING = "binding=cores of its own"
"""How the software fingerprint names it."""

_SYSTEM = Path("/sys/devices/system/cpu")


def can_bind() -> bool:
    """Whether processes are bound here: the system has the call (Linux), and the cores that it names are ours.

    A control group with a quota of fewer cores than it may run on shares them with others, from whom a process that is
    bound could not move away.
    """
    return hasattr(os, "sched_setaffinity") and available_cores() >= len(os.sched_getaffinity(0))


def own_cores(number: int, processes: int, *, threads: int) -> tuple[int, ...]:
    """Logical CPUs of process `number` of as many on this node, one for each of its threads.

    Of the hardware threads of a core the first ones go first, so that processes share no core before they must.
    Empty, for no binding, where they cannot be told: there are fewer CPUs than threads, which is also what a process
    sees that its launcher has bound already.
    """
    if not can_bind():
        return ()
    allowed = sorted(os.sched_getaffinity(0), key=lambda cpu: (_hardware_thread(cpu), cpu))
    if processes * threads > len(allowed):
        return ()
    return tuple(allowed[number * threads : (number + 1) * threads])


def _hardware_thread(cpu: int) -> int:
    """Which one of its core's hardware threads a logical CPU is, from 0; 0 where the system does not say."""
    path = _SYSTEM / f"cpu{cpu}" / "topology" / "thread_siblings_list"
    if not path.exists():
        return 0
    siblings: list[int] = []
    for part in path.read_text().strip().split(","):  # such as 0,64 or 0-1
        first, _, last = part.partition("-")
        siblings += range(int(first), int(last or first) + 1)
    return siblings.index(cpu)


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
