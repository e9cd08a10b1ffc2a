"""Times one collective at one size in all groups of a layout at once; every process calls this.

Each repetition starts after a barrier of all processes and is read from every process's trace. Within a group the
shortest duration counts: that process came last, so its time includes no waiting. For a message the receiver's
duration counts, which ends when the data has arrived. Of concurrent groups the slowest counts: a step continues when
all have ended.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch.profiler import record_function

from kernelcast.collector.communication.collectives import COLLECTIVES, Members, check_memory
from kernelcast.collector.communication.layouts import Layout
from kernelcast.collector.communication.peers import FailedAloneError, LostPeersError, Peers
from kernelcast.collector.measuring.harness import (
    Effort,
    TraceClock,
    is_settled,
    profiled,
    stored_kernels,
    synchronise,
)
from kernelcast.collector.measuring.outcome import Untimed
from kernelcast.collector.traces.attribution import attribute
from kernelcast.runtime.operators import OPERATORS, Operator
from kernelcast.store import Kernel, Repetition, Status

_MARK = "kernelcast.comm"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommPoint:
    """A collective in the groups of a layout; `entries` is the input of each process."""

    operator: str
    layout: Layout
    entries: int

    @property
    def law(self) -> Operator:
        """The collective's row of the table."""
        return OPERATORS[self.operator]

    @property
    def vector(self) -> tuple[int, int, int]:
        """The workload vector [entries, nodes, gpus_per_node] of the group, not of the world."""
        return self.entries, self.layout.nodes, self.layout.per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalTime:
    """One repetition in one process's trace, µs."""

    time_us: float
    start_us: float
    kernels: tuple[Kernel, ...]


def time_point(point: CommPoint, peers: Peers, dtype: torch.dtype, effort: Effort) -> list[Repetition]:
    """Repetitions that all processes agree on (the same on every process).

    Raises:
        Untimed: one process could not measure (memory, a missing feature), so none did; raised on all of them.
        FailedAloneError: this process ran out of memory inside the collective.
    """
    members = peers.members(point.layout)
    exchange = together(peers, lambda: _build(point, members, peers, dtype))

    def call() -> None:
        try:
            exchange()
            synchronise(peers.place)
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise FailedAloneError(
                f"collect comm: {point.operator} {list(point.vector)}: {Untimed.of(error).reason[:400]} "
                f"(process {peers.world.rank}); measured points are stored"
            ) from error

    iteration_s = together(peers, lambda: _warm_up(call, peers, effort))
    # The slowest decides, so that all run the same number.
    size = effort.block_size(max(peers.gather(iteration_s)))
    repetitions: list[Repetition] = []
    clock = TraceClock()
    deadline = time.monotonic() + effort.most_seconds
    for block in range(1, effort.most_blocks + 1):
        local_times = together(peers, lambda: _one_block(call, peers, clock, size))
        repetitions += _agreed(point, peers.gather(local_times), len(repetitions))
        late = peers.from_first(time.monotonic() > deadline)
        if late or is_settled(repetitions, effort, first=block == 1):
            break
    return repetitions


def together(peers: Peers, work: Callable[[], T]) -> T:
    """Run `work` on every process; a failure of one is raised on all as Untimed, so that none waits for it."""
    failure: tuple[Status, str] | None = None
    try:
        done = work()
    except (LostPeersError, FailedAloneError):
        raise
    except Exception as error:
        own = Untimed.of(error)
        failure = own.status, own.reason
    for rank, found in enumerate(peers.gather(failure)):
        if found is not None:
            status, reason = found
            raise Untimed(status, f"{reason[:400]} (process {rank})")
    return done


def _build(
    point: CommPoint, members: Members | None, peers: Peers, dtype: torch.dtype
) -> Callable[[], object]:
    """The call; nothing on a process outside the groups of the layout."""
    if peers.place.type == "cpu":
        check_memory(
            point.law, point.entries, point.layout.size, dtype.itemsize, processes=peers.world.local_size
        )
    if members is None:
        return lambda: None
    return COLLECTIVES[point.operator].build(members, point.entries, peers.place, dtype)


def _warm_up(call: Callable[[], object], peers: Peers, effort: Effort) -> float:
    """Seconds of the fastest iteration."""
    iteration_s = math.inf
    for _ in range(effort.warm_up_iterations):
        peers.barrier()
        started = time.monotonic()
        call()
        iteration_s = min(iteration_s, time.monotonic() - started)
    return iteration_s


def _one_block(
    call: Callable[[], object], peers: Peers, clock: TraceClock, size: int
) -> list[_LocalTime | None]:
    def iterations() -> None:
        for index in range(size):
            peers.barrier()
            with record_function(f"{_MARK}#{index}"):
                call()
        # Lets gloo's threads finish recording before the profiler stops.
        peers.barrier()

    trace = profiled(peers.place, iterations)
    own = {work.mark: work for work in attribute(trace, _MARK)}
    return [
        _LocalTime(
            time_us=work.time_us,
            start_us=clock.since_first_us(trace, work.start_us),
            kernels=stored_kernels(work),
        )
        if (work := own.get(f"{_MARK}#{index}"))
        else None
        for index in range(size)
    ]


def _agreed(
    point: CommPoint, local_times: Sequence[Sequence[_LocalTime | None]], first: int
) -> list[Repetition]:
    """Repetitions from every process's local times; numbers start at `first`."""
    repetitions = []
    for index in range(len(local_times[0])):
        slowest = max(
            (_of_group(point, [local_times[rank][index] for rank in ranks]) for ranks in point.layout.groups),
            key=lambda one: one.time_us,
        )
        repetitions.append(
            Repetition(
                index=first + index,
                time_us=slowest.time_us,
                start_us=slowest.start_us,
                kernels=slowest.kernels,
            )
        )
    return repetitions


def _of_group(point: CommPoint, local_times: Sequence[_LocalTime | None]) -> _LocalTime:
    """The time of the process whose duration counts."""
    if COLLECTIVES[point.operator].is_message:
        local_times = local_times[-1:]
    found = [one for one in local_times if one is not None]
    if not found:
        raise Untimed(Status.FAILED, "no process's trace holds its kernels")
    return min(found, key=lambda one: one.time_us)
