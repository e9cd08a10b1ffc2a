"""`collect comm`: times collectives under the real launcher (torchrun); every process calls this, process 0 stores.

Each repetition starts behind a barrier and is read from every process's trace. Of a collective the shortest of the
processes' durations counts: that process came last, so its time holds no waiting for the others. Point-to-point counts
the receiver's, which ends when the data is there.
"""

import os
from collections.abc import Callable, Iterator
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
from kernelcast.collector.compute import DTYPES, Collected, Progress, is_known, measured
from kernelcast.collector.harness import (
    BLOCK,
    Effort,
    TraceClock,
    is_stable,
    kineto_trace,
    stored_kernels,
    synchronise,
)
from kernelcast.collector.kineto import read_trace
from kernelcast.collector.plan import Plan
from kernelcast.collector.probe import probe, resolve_device
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.operators import OPERATORS, Direction, Operator
from kernelcast.store import Database, PointKey, Repetition, Run, Sample, utc_now

_MARK = "kernelcast.comm"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process's place among those that the launcher started."""

    rank: int
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
        try:
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            local_size = int(os.environ["LOCAL_WORLD_SIZE"])
        except (KeyError, ValueError):
            raise UsageError(
                "collect comm runs under a launcher, found no RANK, WORLD_SIZE and LOCAL_WORLD_SIZE; expected: "
                "torchrun --nproc-per-node 2 --no-python kernelcast collect comm --db FILE"
            ) from None
        if size < 2 or size % local_size:
            raise UsageError(
                f"collect comm: {size} process(es), {local_size} per node; expected 2 or more, nodes alike"
            )
        return cls(rank=rank, size=size, local_size=local_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    operator: Operator
    entries: int
    vector: tuple[int, int, int]


def _points(plan: Plan, world: World, element_bytes: int) -> list[_Point]:
    operators = [op for op in OPERATORS.values() if op.collective]
    return [
        _Point(
            operator=op,
            entries=size // element_bytes,
            vector=(size // element_bytes, world.nodes, world.local_size),
        )
        for size in plan.messages.sizes_bytes()
        for op in operators
        # A message has two ends; more processes would measure it again.
        if op.collective != "point_to_point" or world.size == 2
    ]


def collect_comm(
    open_database: Callable[[], Database],
    plan: Plan,
    *,
    device: str = "auto",
    dtype: str = "float32",
    threads: int = 1,
    again: bool = False,
    effort: Effort | None = None,
    site: str = "",
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Collected:
    """Measure the plan's message sizes over all processes; only process 0 opens the database and reports progress.

    Raises:
        UsageError: not under a launcher, or unknown device or dtype.
    """
    world = World.from_launcher()
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} is unknown; expected one of {', '.join(DTYPES)}")
    place = resolve_device(device)
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(place)
    torch.set_num_threads(threads)
    with _process_group("nccl" if place.type == "cuda" else "gloo"):
        if world.rank == 0:
            with open_database() as database:
                recorder = _Recorder(database, plan, place, dtype, threads, again, site)
                return _measure_all(plan, world, place, dtype, effort or Effort(), recorder, on_progress)
        return _measure_all(plan, world, place, dtype, effort or Effort(), None, on_progress)


@contextmanager
def _process_group(backend: str) -> Iterator[None]:
    dist.init_process_group(backend)
    try:
        yield
    finally:
        dist.destroy_process_group()


class _Recorder:
    """Process 0's way to the database; the run is added with its first sample."""

    def __init__(
        self,
        database: Database,
        plan: Plan,
        place: torch.device,
        dtype: str,
        threads: int,
        again: bool,
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
        self.known: set[PointKey] = set() if again else measured(database, self._run)

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
    plan: Plan,
    world: World,
    place: torch.device,
    dtype: str,
    effort: Effort,
    recorder: _Recorder | None,
    on_progress: Callable[[Progress], None],
) -> Collected:
    points = _points(plan, world, DTYPES[dtype].itemsize)
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
    with kineto_trace(place) as path:
        for index in range(BLOCK):
            dist.barrier()
            with record_function(f"{_MARK}#{index}"):
                call()
                synchronise(place)
    trace = read_trace(path[0])
    path[0].unlink()
    own = {work.mark: work for work in attribute(trace, _MARK)}
    times: list[list[float | None]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(
        times, [own[mark].time_us if (mark := f"{_MARK}#{i}") in own else None for i in range(BLOCK)]
    )
    repetitions = []
    for index in range(BLOCK):
        durations = [rank[index] for rank in times]
        work = own.get(f"{_MARK}#{index}")
        repetitions.append(
            Repetition(
                index=first_index + index,
                time_us=_agreed_us(point, durations),
                start_us=clock.since_first_us(trace, work.start_us) if work else 0.0,
                kernels=stored_kernels(work) if work else (),
            )
        )
    return repetitions


def _agreed_us(point: _Point, durations_us: list[float | None]) -> float:
    if point.operator.collective == "point_to_point":
        durations_us = durations_us[-1:]
    found = [d for d in durations_us if d is not None]
    if not found:
        raise UsageError(f"{point.operator.name}: no process's trace holds its kernels")
    return min(found)
