"""`collect comm`: times collectives in groups of a launcher's processes; process 0 stores each result at once."""

import math
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest

import torch

from kernelcast.collector.benches import Place
from kernelcast.collector.communication.collectives import COLLECTIVES
from kernelcast.collector.communication.layouts import Layout, layouts
from kernelcast.collector.communication.peers import FirstFailedError, Peers, joined
from kernelcast.collector.communication.timing import CommPoint, time_point, together
from kernelcast.collector.communication.watchdog import Watchdog
from kernelcast.collector.communication.world import World
from kernelcast.collector.compute import Collected, Progress, is_known, known_points
from kernelcast.collector.launch import ONE_VOICE
from kernelcast.collector.machine.probe import Fingerprints, probe
from kernelcast.collector.measuring.core_binding import bind, own_cores
from kernelcast.collector.measuring.disturbance import Watch, mean_reference_us
from kernelcast.collector.measuring.harness import Effort
from kernelcast.collector.measuring.host_memory import keep_freed_memory
from kernelcast.collector.measuring.outcome import Flags, Outcome, Untimed, sample_of
from kernelcast.collector.own_run import own_run
from kernelcast.collector.plans.plan import planned_operators
from kernelcast.collector.plans.plan_ranges import Plan
from kernelcast.collector.settings import Settings
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.operators import Direction, Operator
from kernelcast.store import Database, PointKey, Run, Sample, utc_now
from kernelcast.store.doubts import flagged
from kernelcast.store.statistics import inner_mean_us, quiet_us

TIMEOUT_S = 300.0
"""How long a process waits for the others."""
# Mean over quiet time. On an idle machine, two processes that wait for each other reach about 2.
_MOST_STALLED = 3.0
_MOST_AGAIN = 2


def comm_points(
    plan: Plan, chosen: list[Layout], element_bytes: int, operators: tuple[str, ...] = ()
) -> list[CommPoint]:
    """The points of a collection: the plan's sizes of every collective in every layout; messages only in pairs."""
    planned = planned_operators(plan, operators, collectives=True)
    points = []
    for layout in chosen:
        columns = [
            [
                CommPoint(operator=op.name, layout=layout, entries=entries)
                for entries in _entries(plan, op, layout.size, element_bytes)
            ]
            for op in planned
            if layout.size == 2 or not COLLECTIVES[op.name].is_message
        ]
        # Collectives take turns: drift of the machine then affects all of them equally.
        points += [point for row in zip_longest(*columns) for point in row if point is not None]
    if too_small := [point for point in points if point.entries < point.layout.size]:
        size = max(point.layout.size for point in too_small)
        raise UsageError(
            f"plan {plan.name}: its smallest message is below {size * element_bytes} bytes, expected at least an "
            f"element for each of {size} processes"
        )
    return points


def _entries(plan: Plan, op: Operator, processes: int, element_bytes: int) -> list[int]:
    """The plan's distinct entries, rounded down to a multiple of the processes where they divide the buffer."""
    planned = plan.entries(op.name, processes=processes, element_bytes=element_bytes)
    share = processes if op.is_divided else 1
    return list(dict.fromkeys(entries - entries % share for entries in planned))


def what_to_exchange(
    plan: Plan, world: World, settings: Settings, layout_names: str
) -> tuple[Place, list[CommPoint]]:
    """Place and points of a collection; callers can ask before they start processes.

    Raises:
        UsageError: unknown device, dtype or operator, fewer devices than processes, layouts that cannot be formed, or
            for which the plan has no messages, or too small ones.
    """
    place = settings.place()
    if place.device.type == "cuda":
        if world.local_size > torch.cuda.device_count():
            raise UsageError(
                f"collect comm: {world.local_size} processes and {torch.cuda.device_count()} CUDA device(s) "
                "on this node, expected a device for each process"
            )
        place = Place(torch.device("cuda", world.local_rank), place.dtype)
    chosen = layouts(layout_names, world)
    points = comm_points(plan, chosen, place.dtype.itemsize, settings.operators)
    for name in layout_names.split(",") if layout_names.strip() else ():
        if not any(point.layout in layouts(name, world) for point in points):
            raise UsageError(f"--layouts: plan {plan.name} has no messages for {name.strip()}")
    if not points:
        sizes = ", ".join(sorted({str(layout.size) for layout in chosen}))
        raise UsageError(f"plan {plan.name}: it has no messages for groups of {sizes} processes")
    return place, points


def collect_comm(
    open_database: Callable[[], Database],
    plan: Plan,
    settings: Settings,
    *,
    layout_names: str = "",
    timeout_s: float = TIMEOUT_S,
    on_progress: Progress = lambda done, total, operator: None,
) -> Collected:
    """Measure the plan's message sizes in every layout; only process 0 opens the database and reports progress.

    A process without contact to the others for `timeout_s` writes a message to standard error and ends.

    Raises:
        UsageError: not under a launcher, unknown device, dtype or operator, or impossible layouts.
        DataError: the database cannot be written (process 0).
        LostPeersError: another process is gone; FirstFailedError where process 0 could not open the database.
        KeyboardInterrupt: one of the processes received SIGINT or SIGTERM.
    """
    world = World.from_launcher()
    place, points = what_to_exchange(plan, world, settings, layout_names)
    # Before this process is bound to its own cores.
    keys = probe(place.device, threads=settings.threads, processes=world.local_size)
    if place.device.type == "cuda":
        torch.cuda.set_device(place.device)
    else:
        bind(own_cores(world.local_rank, world.local_size, threads=settings.threads))
        keep_freed_memory()
    torch.set_num_threads(settings.threads)
    with (
        Watchdog(timeout_s, local_rank=world.local_rank, silent=bool(os.environ.get(ONE_VOICE))) as watchdog,
        joined(world, place.device, timeout_s=timeout_s, watchdog=watchdog) as peers,
        _recorder(peers, open_database, plan, settings, keys) as recorder,
    ):
        return _measure_all(points, peers, place, settings.effort, recorder, on_progress)


@contextmanager
def _recorder(
    peers: Peers,
    open_database: Callable[[], Database],
    plan: Plan,
    settings: Settings,
    keys: Fingerprints,
) -> "Iterator[_Recorder | None]":
    """Process 0's access to the database; if it cannot be opened, the other processes end without a message."""
    if peers.world.rank != 0:
        if peers.from_first(False):
            raise FirstFailedError("collect comm: process 0 could not open the database")
        yield None
        return
    try:
        database = open_database()
        recorder = _Recorder(database, plan, settings, keys)
    except BaseException:
        peers.from_first(True)
        raise
    with database:
        peers.from_first(False)
        yield recorder


class _Recorder:
    """Stores samples. Each number of groups per node has its own run, added with its first sample."""

    def __init__(self, database: Database, plan: Plan, settings: Settings, keys: Fingerprints) -> None:
        self._database, self._plan, self._settings, self._keys = database, plan, settings, keys
        self._started_at = utc_now()
        self._runs: dict[int, Run] = {}

    def known(self, points: list[CommPoint]) -> list[bool]:
        """For every point, whether the database holds it."""
        held: dict[int, set[PointKey]] = {}
        for sharing in {point.layout.groups_per_node for point in points}:
            held[sharing] = known_points(self._database, self._run(sharing), self._settings.again)
        return [
            is_known(point.law, self._settings.dtype, point.vector, held[point.layout.groups_per_node])
            for point in points
        ]

    def _run(self, groups_per_node: int) -> Run:
        if groups_per_node not in self._runs:
            # A single group is also what nccl-tests measures: it has no condition.
            conditions = {"groups_per_node": groups_per_node} if groups_per_node > 1 else {}
            own = own_run(
                "collect comm",
                self._keys,
                plan=self._plan.name,
                conditions=conditions,
                site=self._settings.site,
            )
            self._runs[groups_per_node] = replace(own, started_at=self._started_at)
        return self._runs[groups_per_node]

    def store(self, point: CommPoint, result: "_PointResult") -> Sample:
        run = self._run(point.layout.groups_per_node)
        timed = {} if isinstance(result.outcome, Untimed) else {"reference_us": result.reference_us}
        sample = sample_of(
            result.outcome,
            self._settings.effort,
            result.flags,
            run_id=run.id,
            operator=point.operator,
            direction=Direction.ONCE,
            dtype=self._settings.dtype,
            vector=point.vector,
            measured_at=result.measured_at,
            **timed,
        )
        self._database.add_run(run, self._keys.compute, self._keys.fabric, self._keys.software)
        [sample] = flagged([sample], self._keys.compute, self._keys.fabric)
        self._database.add_samples([sample])
        return sample


@dataclass(frozen=True, slots=True, kw_only=True)
class _PointResult:
    """One measurement of a point; the repetitions are the same on all processes."""

    outcome: Outcome
    measured_at: str
    reference_us: float
    flags: Flags

    @property
    def mean_us(self) -> float:
        """The mean that `train` uses; infinite without a time."""
        return (
            math.inf
            if isinstance(self.outcome, Untimed)
            else inner_mean_us([r.time_us for r in self.outcome])
        )

    @property
    def is_stalled(self) -> bool:
        """Whether other work took the cores during too many repetitions."""
        if isinstance(self.outcome, Untimed):
            return False
        return self.mean_us > _MOST_STALLED * quiet_us([r.time_us for r in self.outcome])


def _measure_all(
    points: list[CommPoint],
    peers: Peers,
    place: Place,
    effort: Effort,
    recorder: _Recorder | None,
    on_progress: Progress,
) -> Collected:
    known = peers.from_first(recorder.known(points) if recorder else [])
    todo = [point for point, is_stored in zip(points, known, strict=True) if not is_stored]
    collected = Collected(already_there=len(points) - len(todo))
    if not todo:
        return collected
    try:
        # Every process watches its own node and device.
        watch = together(peers, lambda: Watch(place).with_best())
    except Untimed as error:
        raise DataError(f"collect comm: {error.reason}") from error
    waiting, attempts = deque(todo), Counter[CommPoint]()
    stalled: dict[CommPoint, _PointResult] = {}
    try:
        while waiting:
            point = waiting.popleft()
            attempts[point] += 1
            measured, is_interrupted = _measure(point, peers, place, effort, watch)
            if point in stalled:
                measured = min(stalled.pop(point), measured, key=lambda one: one.mean_us)
            if measured.is_stalled and attempts[point] <= _MOST_AGAIN:
                # The disturbance may be over after the other points.
                waiting.append(point)
                stalled[point] = measured
            elif recorder:
                collected.count([recorder.store(point, measured)])
                on_progress(len(todo) - len(waiting), len(todo), point.operator)
            else:
                collected.measured += 1
            # All processes stop at the same point, so none waits for one that ended.
            if waiting and is_interrupted:
                raise KeyboardInterrupt
    finally:
        # Interrupted before they were repeated: a stalled result is better than none.
        if recorder:
            for point, measured in stalled.items():
                recorder.store(point, measured)
    return collected


def _measure(
    point: CommPoint, peers: Peers, place: Place, effort: Effort, watch: Watch
) -> tuple[_PointResult, bool]:
    """A measurement, and whether one of the processes was interrupted during it."""
    measured_at, before = utc_now(), watch.look()
    outcome: Outcome
    try:
        outcome = time_point(point, peers, place.dtype, effort)
    except Untimed as error:
        outcome = error
    after = watch.look()
    gathered = peers.gather((watch.flags(before, after), peers.interrupted))
    noticed = _of_all([flags for flags, _ in gathered])
    measured = _PointResult(
        outcome=outcome,
        measured_at=measured_at,
        reference_us=mean_reference_us(before, after),
        flags=noticed,
    )
    return measured, any(interrupted for _, interrupted in gathered)


def _of_all(noticed: list[Flags]) -> Flags:
    """Each flag once, with the detail of the lowest rank."""
    found: dict[str, str] = {}
    for flags in noticed:
        for name, detail in flags:
            found.setdefault(name, detail)
    return tuple(found.items())
