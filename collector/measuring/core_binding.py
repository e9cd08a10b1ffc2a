"""Binds a process to its own cores, as `mpirun --bind-to core` and Slurm's task/affinity plugin do.

Unbound, processes that exchange data migrate between the cores of a node, and a gloo thread may wait several
milliseconds for a core on which another process computes: the step time then depends on the scheduler, which no
measurement of operators can predict. The setting is part of the software fingerprint (`SETTING`).
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from kernelcast.collector.machine.probe_cpu import available_cores, job_cores

SETTING = "binding=cores of its own"
"""Its name in the software fingerprint."""

_SYSTEM = Path("/sys/devices/system/cpu")


def can_bind() -> bool:
    """Whether processes are bound here: the system supports it (Linux), and no quota is below the affinity.

    Under a quota of fewer cores than the affinity, other groups share the cores, and a bound process could not move
    away from them.
    """
    return hasattr(os, "sched_setaffinity") and available_cores() >= len(os.sched_getaffinity(0))


def own_cores(number: int, processes: int, *, threads: int) -> tuple[int, ...]:
    """Logical CPUs of process `number` of `processes` on this node, one for each of its threads.

    Each thread gets a core if there are enough; otherwise a process gets both hardware threads of a core before the
    next core. Empty (no binding) where there are fewer CPUs than threads: the processes share them, or a launcher has
    bound them already (see `is_bound`).
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
    """Cores that `processes` processes leave free on this node: one logical CPU of each.

    Where processes are not bound, an empty tuple for each free core: the system places the thread.
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
    """Whether `processes` processes on this node run on their own cores, bound here or by their launcher.

    A process with fewer CPUs than all threads need owns them if srun or mpirun started each process and the job has
    the same number of CPUs for every one. Otherwise the processes share them, or share the CPUs of a socket.
    """
    if not can_bind():
        return False
    if own_cores(0, processes, threads=threads):
        return True
    allowed, in_job = len(os.sched_getaffinity(0)), job_cores(environment)
    return _launched(environment) and allowed < in_job and processes * allowed <= in_job


def _launched(environment: Mapping[str, str]) -> bool:
    """Whether srun or mpirun started this process as one of several, rather than a parent of the others."""
    # torchrun binds nothing, and another launcher may have started it.
    if environment.get("TORCHELASTIC_RUN_ID"):
        return False
    return any(
        environment.get(name, "1") != "1" for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_LOCAL_SIZE")
    )


def _place(cpu: int) -> tuple[int, int]:
    """A logical CPU's core, named by its lowest CPU, and the index of its hardware thread."""
    try:
        text = (_SYSTEM / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text()
        siblings: list[int] = []
        for part in text.strip().split(","):  # such as 0,64 or 0-1
            first, _, last = part.partition("-")
            siblings += range(int(first), int(last or first) + 1)
        return siblings[0], siblings.index(cpu)
    except (OSError, ValueError):  # not reported
        return cpu, 0


def bind(cores: tuple[int, ...]) -> None:
    """Bind this thread, and threads started by it later, to `cores` (empty: no binding), if the system allows it."""
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
