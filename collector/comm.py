"""`collect comm`: times collectives under the real launcher (torchrun); every process calls this, process 0 stores.

Each repetition starts behind a barrier and is read from every process's trace. Of a collective the shortest of the
processes' durations counts: that process came last, so its time holds no waiting for the others. Point-to-point counts
the receiver's, which ends when the data is there.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.profiler import record_function

from kernelcast.collector.attribution import attribute
from kernelcast.collector.code_digest import code_digest
from kernelcast.collector.collectives import COLLECTIVES
from kernelcast.collector.compute import DTYPES, Again, Collected, Progress, is_known, known_points
from kernelcast.collector.harness import (
    BLOCK,
    Effort,
    TraceClock,
    is_stable,
    profiled,
    stored_kernels,
    synchronise,
)
from kernelcast.collector.host_memory import keep_freed_memory
from kernelcast.collector.plan import Plan
from kernelcast.collector.probe import probe, resolve_device
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.operators import OPERATORS, Direction, Operator
from kernelcast.store import Database, Kernel, PointKey, Repetition, Run, Sample, utc_now

_MARK = "kernelcast.comm"
_LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
T = TypeVar("T")

# One process's duration (µs) and kernels of a repetition.
_Seen = tuple[float, tuple[Kernel, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process's place among those that the launcher started."""

    rank: int
    local_rank: int
    size: int
    local_size: int

    @property
    def nodes(self) -> int:
        """Nodes that the processes are on, all alike."""
        return self.size // self.local_size

    @classmethod
    def from_launcher(cls) -> "World":
        """Read torchrun's environment.

        Raises:
            UsageError: it is not there, there is one process only, or the nodes are not alike.
        """
        found = [os.environ.get(name, "") for name in _LAUNCHER_VARIABLES]
        if not all(value.isdecimal() for value in found):
            raise UsageError(
                f"collect comm runs under a launcher, found no {', '.join(_LAUNCHER_VARIABLES)}; expected: "
                "torchrun --nproc-per-node 2 --no-python kernelcast collect comm --db FILE"
            )
        rank, local_rank, size, local_size = map(int, found)
        if size < 2 or local_size < 1 or size % local_size:
            raise UsageError(
                f"collect comm: {size} process(es), {local_size} per node; expected 2 or more, nodes alike"
            )
        return cls(rank=rank, local_rank=local_rank, size=size, local_size=local_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    operator: Operator
    entries: int
    vector: tuple[int, int, int]


def _points(plan: Plan, world: World, element_bytes: int) -> list[_Point]:
    smallest = plan.messages.smallest_bytes
    if smallest < world.size * element_bytes:
        raise UsageError(
            f"plan {plan.name}: messages.smallest_bytes is {smallest}, expected at least {world.size * element_bytes}: "
            f"an element for each of {world.size} processes"
        )
    points = []
    for size in plan.messages.sizes_bytes():
        for op in OPERATORS.values():
            # A message has two ends; more processes would measure it again.
            if op.collective and (op.collective != "point_to_point" or world.size == 2):
                entries = size // element_bytes
                if op.collective == "reduce_scatter":
                    entries -= entries % world.size  # every process gets as much
                points.append(
                    _Point(operator=op, entries=entries, vector=(entries, world.nodes, world.local_size))
                )
    return points


def collect_comm(
    open_database: Callable[[], Database],
    plan: Plan,
    *,
    device: str = "auto",
    dtype: str = "float32",
    threads: int = 1,
    again: Again = "no",
    effort: Effort | None = None,
    site: str = "",
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Collected:
    """Measure the plan's message sizes over all processes; only process 0 opens the database and reports progress.

    Raises:
        UsageError: not under a launcher, or unknown device or dtype.
        DataError: the database cannot be written (process 0), or another process is gone (the others).
    """
    world = World.from_launcher()
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} is unknown; expected one of {', '.join(DTYPES)}")
    place = resolve_device(device)
    if place.type == "cuda":
        if world.local_size > torch.cuda.device_count():
            raise UsageError(
                f"collect comm: {world.local_size} processes and {torch.cuda.device_count()} CUDA device(s) "
                "on this node, expected a device for each process"
            )
        place = torch.device("cuda", world.local_rank)
        torch.cuda.set_device(place)
    else:
        keep_freed_memory()
    points = _points(plan, world, DTYPES[dtype].itemsize)
    torch.set_num_threads(threads)
    with _process_group("nccl" if place.type == "cuda" else "gloo"):
        if world.rank == 0:
            with open_database() as database:
                recorder = _Recorder(database, plan, place, dtype, threads, again, site)
                return _measure_all(points, place, dtype, effort or Effort(), recorder, on_progress)
        return _measure_all(points, place, dtype, effort or Effort(), None, on_progress)


@contextmanager
def _process_group(backend: str) -> Iterator[None]:
    """Join the other processes. Whatever goes wrong among them is one line: all of them see it, few are its cause."""
    try:
        dist.init_process_group(backend)
        try:
            yield
        finally:
            dist.destroy_process_group()
    except (RuntimeError, ValueError) as error:
        first_line = next(iter(str(error).strip().splitlines()), "no reason given")
        raise DataError(f"collect comm over {backend}: {first_line}") from error


class _Recorder:
    """Process 0's way to the database; the run is added with its first sample."""

    def __init__(
        self,
        database: Database,
        plan: Plan,
        place: torch.device,
        dtype: str,
        threads: int,
        again: Again,
        site: str,
    ) -> None:
        self._keys = probe(place, threads=threads)
        self._run = Run(
            started_at=utc_now(),
            kernelcast_version=version("kernelcast"),
            code_digest=code_digest(),
            command="collect comm",
            compute_id=self._keys.compute.digest,
            fabric_id=self._keys.fabric.digest,
            software_id=self._keys.software.digest,
            plan=plan.name,
            site=site,
        )
        self._database, self._dtype = database, dtype
        self.known: set[PointKey] = known_points(database, self._run, again)

    def store(self, point: _Point, repetitions: list[Repetition], measured_at: str) -> None:
        sample = Sample.from_repetitions(
            run_id=self._run.id,
            operator=point.operator.name,
            direction=Direction.ONCE,
            dtype=self._dtype,
            vector=point.vector,
            repetitions=repetitions,
            measured_at=measured_at,
        )
        self._database.add_run(self._run, self._keys.compute, self._keys.fabric, self._keys.software)
        self._database.add_samples([sample])


def _measure_all(
    points: list[_Point],
    place: torch.device,
    dtype: str,
    effort: Effort,
    recorder: _Recorder | None,
    on_progress: Callable[[Progress], None],
) -> Collected:
    known = _from_first(recorder.known if recorder else set())
    todo = [point for point in points if not is_known(point.operator, dtype, point.vector, known)]
    collected = Collected(already_there=len(points) - len(todo))
    for done, point in enumerate(todo, start=1):
        measured_at = utc_now()
        repetitions = _measure(point, place, DTYPES[dtype], effort)
        collected.measured += 1
        if recorder:
            recorder.store(point, repetitions, measured_at)
            on_progress(Progress(done=done, total=len(todo), operator=point.operator.name))
    return collected


def _from_first(value: T) -> T:
    """What process 0 holds, on every process."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def _measure(point: _Point, place: torch.device, dtype: torch.dtype, effort: Effort) -> list[Repetition]:
    """Repetitions as all processes agree on them (the same on every process)."""
    call = COLLECTIVES[point.operator.collective](point.entries, place, dtype)
    for _ in range(effort.warm_up_iterations):
        dist.barrier()
        call()
        synchronise(place)
    repetitions: list[Repetition] = []
    clock = TraceClock()
    for _ in range(effort.most_blocks):
        repetitions.extend(_one_block(point, call, place, clock, len(repetitions)))
        if is_stable(repetitions, effort.stable_within):
            break
    return repetitions


def _one_block(
    point: _Point, call: Callable[[], object], place: torch.device, clock: TraceClock, first_index: int
) -> list[Repetition]:
    def iterations() -> None:
        for index in range(BLOCK):
            dist.barrier()
            with record_function(f"{_MARK}#{index}"):
                call()
                synchronise(place)

    trace = profiled(place, iterations)
    own = {work.mark: work for work in attribute(trace, _MARK)}
    marks = [f"{_MARK}#{index}" for index in range(BLOCK)]
    seen: list[list[_Seen | None]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(
        seen,
        [(own[mark].time_us, stored_kernels(own[mark])) if mark in own else None for mark in marks],
    )
    repetitions = []
    for index, mark in enumerate(marks):
        time_us, kernels = _agreed(point, [rank[index] for rank in seen])
        start_us = clock.since_first_us(trace, own[mark].start_us) if mark in own else 0.0
        repetitions.append(
            Repetition(index=first_index + index, time_us=time_us, start_us=start_us, kernels=kernels)
        )
    return repetitions


def _agreed(point: _Point, seen: Sequence[_Seen | None]) -> _Seen:
    """The process whose duration counts; `seen` is what each one's trace holds of a repetition."""
    if point.operator.collective == "point_to_point":
        seen = seen[-1:]
    found = [one for one in seen if one is not None]
    if not found:
        raise DataError(f"{point.operator.name}: no process's trace holds its kernels")
    return min(found, key=lambda one: one[0])
