"""Runs a process on cores of its own, as `mpirun --bind-to core` and Slurm's task/affinity plugin do.

Left to the system, processes that exchange data wander over the cores of a node, and a thread of gloo's may wait
several milliseconds for a core on which another process computes: a step then takes what the scheduler made of it,
which no measurement of its operators can tell. The setting is part of the software fingerprint (`SETTING`).
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from kernelcast.collector.machine.probe_cpu import available_cores, job_cores

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

    Each thread gets a core while there are enough of them; where hardware threads are needed, a process gets both of a
    core's before it gets another core. Empty, for no binding, where there are fewer CPUs than threads: the processes
    share them, or a launcher has bound them already (see `is_bound`).
    """
    if not can_bind():
        return ()
    allowed = os.sched_getaffinity(0)
    if processes * threads > len(allowed):
        return ()
    places = {cpu: _place(cpu) for cpu in allowed}  # core and hardware thread
    cores = {core for core, _ in places.values()}
    is_one_each = processes * threads <= len(cores)
    order = sorted(allowed, key=lambda cpu: (places[cpu][is_one_each], places[cpu][not is_one_each], cpu))
    return tuple(order[number * threads : (number + 1) * threads])


def other_cores(processes: int, *, threads: int) -> tuple[tuple[int, ...], ...]:
    """What is left of this node's cores beside as many processes: a logical CPU each, none of a core that they use.

    Where processes are not bound, an empty tuple for each core that is left: the system says where it runs.
    """
    used = set(own_cores(0, 1, threads=processes * threads))
    if not used:
        return ((),) * max(0, available_cores() - processes * threads)
    taken = {_place(cpu)[0] for cpu in used}
    free: dict[int, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        core, _ = _place(cpu)
        if core not in taken:
            free.setdefault(core, cpu)
    return tuple((cpu,) for cpu in free.values())


def is_bound(processes: int, *, threads: int, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether as many processes on this node run on cores of their own, bound here or by their launcher.

    Where a process has fewer CPUs than all of them have threads, they are its own if srun or mpirun started each
    process and the job has as many CPUs for every one. Else all share them, or those of a socket that several are
    bound to.
    """
    if not can_bind():
        return False
    if own_cores(0, processes, threads=threads):
        return True
    allowed, in_job = len(os.sched_getaffinity(0)), job_cores(environment)
    return _launched(environment) and allowed < in_job and processes * allowed <= in_job


def _launched(environment: Mapping[str, str]) -> bool:
    """Whether srun or mpirun started this process as one of several, and not one process that starts the others."""
    # torchrun binds nothing, and may itself have been started by another.
    if environment.get("TORCHELASTIC_RUN_ID"):
        return False
    return any(
        environment.get(name, "1") != "1" for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_LOCAL_SIZE")
    )


def _place(cpu: int) -> tuple[int, int]:
    """A logical CPU's core, named by the lowest CPU on it, and which one of its hardware threads it is, from 0."""
    try:
        text = (_SYSTEM / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text()
        siblings: list[int] = []
        for part in text.strip().split(","):  # such as 0,64 or 0-1
            first, _, last = part.partition("-")
            siblings += range(int(first), int(last or first) + 1)
        return siblings[0], siblings.index(cpu)
    except (OSError, ValueError):  # a system that does not say
        return cpu, 0


def bind(cores: tuple[int, ...]) -> None:
    """Let this thread, and all that it starts from now on, run on `cores` alone; none is no binding.

    A sandbox that forbids it leaves the thread where it is.
    """
    if cores:
        with suppress(OSError):
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
        bind(tuple(before))
