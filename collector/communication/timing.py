"""Times one collective at one size in all groups of a layout at once; every process calls this.

Each repetition starts behind a barrier of all processes and is read from every process's trace. In a group the shortest
of its processes' durations counts: that process came last, so its time holds no waiting for the others. Point-to-point
counts the receiver's, which ends when the data is there. Of the groups that run at once the slowest counts: a step goes
on when all have ended.
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
from kernelcast.collector.measuring.verdict import verdict
from kernelcast.collector.traces.attribution import attribute
from kernelcast.runtime.operators import OPERATORS, Operator
from kernelcast.store import Kernel, Repetition, Status

_MARK = "kernelcast.comm"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommPoint:
    """A collective in the groups of a layout, with `entries` elements that each process puts in."""

    operator: str
    layout: Layout
    entries: int

    @property
    def law(self) -> Operator:
        """The collective's row of the table."""
        return OPERATORS[self.operator]

    @property
    def vector(self) -> tuple[int, int, int]:
        """Its workload vector [entries, nodes, gpus_per_node]: the group's layout, not the world's."""
        return self.entries, self.layout.nodes, self.layout.per_node


class Untimed(Exception):
    """No process measured the point, because one of them could not."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What one process's trace holds of one repetition, µs."""

    time_us: float
    start_us: float
    kernels: tuple[Kernel, ...]


def time_point(point: CommPoint, peers: Peers, dtype: torch.dtype, effort: Effort) -> list[Repetition]:
    """Repetitions as all processes agree on them (the same on every process).

    Raises:
        Untimed: one of the processes could not (memory, what its library lacks), so none did; on all of them.
        FailedAloneError: this process ran out of memory within the collective.
        LostPeersError: one of them is gone.
    """
    members = peers.members(point.layout)
    exchange = together(peers, lambda: _build(point, members, peers, dtype))

    def call() -> None:
        try:
            exchange()
            synchronise(peers.place)
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise FailedAloneError(
                f"collect comm: {point.operator} {list(point.vector)}: {verdict(error)[1][:400]} "
                f"(process {peers.world.rank}); what was measured is stored"
            ) from error

    iteration_s = together(peers, lambda: _warm_up(call, peers, effort))
    # Decided by the slowest, so that all do as many.
    size = effort.block_size(max(peers.gather(iteration_s)))
    repetitions: list[Repetition] = []
    clock = TraceClock()
    deadline = time.monotonic() + effort.most_seconds
    for block in range(1, effort.most_blocks + 1):
        seen = together(peers, lambda: _one_block(call, peers, clock, size))
        repetitions += _agreed(point, peers.gather(seen), len(repetitions))
        late = peers.from_first(time.monotonic() > deadline)
        if late or is_settled(repetitions, effort, first=block == 1):
            break
    return repetitions


def together(peers: Peers, work: Callable[[], T]) -> T:
    """Do it, and agree on whether all could: one process's failure is everybody's, so that nobody waits for it.

    Raises:
        Untimed: one of them could not; on all of them.
        LostPeersError: one of them is gone.
    """
    failure: tuple[Status, str] | None = None
    try:
        done = work()
    except (LostPeersError, FailedAloneError):
        raise
    except Exception as error:
        failure = verdict(error)
    for rank, found in enumerate(peers.gather(failure)):
        if found is not None:
            status, reason = found
            raise Untimed(status, f"{reason[:400]} (process {rank})")
    return done


def _build(
    point: CommPoint, members: Members | None, peers: Peers, dtype: torch.dtype
) -> Callable[[], object]:
    """The call; a process that is in no group of the layout has nothing to do."""
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


def _one_block(call: Callable[[], object], peers: Peers, clock: TraceClock, size: int) -> list[_Seen | None]:
    def iterations() -> None:
        for index in range(size):
            peers.barrier()
            with record_function(f"{_MARK}#{index}"):
                call()
        # gloo's threads are done with what they record before the profiler stops.
        peers.barrier()

    trace = profiled(peers.place, iterations)
    own = {work.mark: work for work in attribute(trace, _MARK)}
    return [
        _Seen(
            time_us=work.time_us,
            start_us=clock.since_first_us(trace, work.start_us),
            kernels=stored_kernels(work),
        )
        if (work := own.get(f"{_MARK}#{index}"))
        else None
        for index in range(size)
    ]


def _agreed(point: CommPoint, seen: Sequence[Sequence[_Seen | None]], first: int) -> list[Repetition]:
    """Repetitions from what every process saw of them; their numbers begin with `first`."""
    repetitions = []
    for index in range(len(seen[0])):
        slowest = max(
            (_of_group(point, [seen[rank][index] for rank in ranks]) for ranks in point.layout.groups),
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


def _of_group(point: CommPoint, seen: Sequence[_Seen | None]) -> _Seen:
    """The process whose duration counts."""
    if COLLECTIVES[point.operator].is_message:
        seen = seen[-1:]
    found = [one for one in seen if one is not None]
    if not found:
        raise Untimed(Status.FAILED, "no process's trace holds its kernels")
    return min(found, key=lambda one: one.time_us)
