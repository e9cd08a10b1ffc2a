"""`collect compute`: measures a plan's operators one by one on one device, and stores each result at once."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

import torch

from kernelcast.collector.benches import Point
from kernelcast.collector.machine.probe import probe
from kernelcast.collector.measuring.companions import check_processes
from kernelcast.collector.measuring.disturbance import WORTH_AGAIN
from kernelcast.collector.measuring.host_memory import keep_freed_memory
from kernelcast.collector.measuring.measurer import Measurer
from kernelcast.collector.own_run import own_run
from kernelcast.collector.plans.plan import compute_points
from kernelcast.collector.plans.plan_ranges import Plan
from kernelcast.collector.settings import Again, Settings
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.devices import Load
from kernelcast.runtime.operators import Operator
from kernelcast.runtime.terminations import interrupts_held, terminations_interrupt
from kernelcast.store import Database, PointKey, Run, Sample, Status
from kernelcast.store.doubts import flagged

Progress = Callable[[int, int, str], None]
"""Called after every point: points done, points in total, and the last operator."""


@dataclass(slots=True, kw_only=True)
class Collected:
    """Counts of points (an operator at a workload) in a collection; measured ones may be `flagged` as doubtful."""

    measured: int = 0
    already_there: int = 0
    unsupported: int = 0
    failed: int = 0
    flagged: int = field(default=0, compare=False)
    first_failure: str = ""

    def count(self, samples: Sequence[Sample]) -> None:
        """Count a point by its samples."""
        statuses = {sample.status for sample in samples}
        if Status.FAILED in statuses:
            self.failed += 1
            sample = samples[0]
            self.first_failure = (
                self.first_failure or f"{sample.operator} {list(sample.vector)}: {sample.reason}"
            )
        elif Status.UNSUPPORTED in statuses:
            self.unsupported += 1
        else:
            self.measured += 1
            self.flagged += any(flag in WORTH_AGAIN for sample in samples for flag, _ in sample.flags)


class Collection:
    """A plan on this machine: place, load and fingerprints, and the measuring of points; errors as `Settings.place`."""

    def __init__(self, plan: Plan, settings: Settings) -> None:
        self.plan, self.settings = plan, settings
        self.place = settings.place()
        self.load = settings.load or plan.load
        if self.place.device.type == "cpu":
            keep_freed_memory()  # part of the software's fingerprint
        torch.set_num_threads(settings.threads)
        self.keys = probe(self.place.device, threads=settings.threads)

    def run(self, processes: int = 1) -> Run:
        """The run of samples measured with `processes` processes."""
        return own_run(
            "collect compute",
            self.keys,
            has_fabric=False,
            plan=self.plan.name,
            conditions={"processes_per_node": processes},
            site=self.settings.site,
        )

    def measure(
        self,
        database: Database,
        run: Run,
        points: Iterable[Point],
        on_measured: Callable[[Point, Sequence[Sample]], None],
        *,
        processes: int = 1,
        expected: Sequence[Point] = (),
    ) -> None:
        """Measure points; each is stored before the next is drawn. `expected` are the points known beforehand."""
        torch.manual_seed(self.plan.seed)
        run_id = database.add_run(run, self.keys.compute, None, self.keys.software)
        with (
            terminations_interrupt(),
            Measurer(
                self.place,
                dtype=self.settings.dtype,
                threads=self.settings.threads,
                seed=self.plan.seed,
                processes=processes,
                effort=self.settings.effort,
                points=expected,
                load=self.load,
            ) as measurer,
        ):
            for point in points:
                with interrupts_held():
                    samples = flagged(measurer.measure(point, run_id), self.keys.compute, None)
                    database.add_samples(samples)
                on_measured(point, samples)


def collect_compute(
    database: Database,
    plan: Plan,
    settings: Settings,
    *,
    points: Sequence[Point] | None = None,
    on_progress: Progress = lambda done, total, operator: None,
) -> Collected:
    """Measure every point that the database does not hold yet for this hardware and software.

    The points are the plan's, or the given `points` from its ranges. Errors as `what_to_measure`.
    """
    planned = what_to_measure(plan, settings)
    points = planned if points is None else points
    collection = Collection(plan, settings)
    collected = Collected()
    levels = []
    for level in settings.processes:
        run = collection.run(level)
        known = known_points(database, run, settings.again, collection.load)
        todo = [point for point in points if not is_known(point.law, settings.dtype, point.vector, known)]
        collected.already_there += len(points) - len(todo)
        levels.append((level, run, todo))
    total, numbers = sum(len(todo) for _, _, todo in levels), count(1)

    def measured_one(point: Point, samples: Sequence[Sample]) -> None:
        collected.count(samples)
        on_progress(next(numbers), total, point.operator)

    for level, run, todo in levels:
        if todo:
            collection.measure(database, run, todo, measured_one, processes=level, expected=todo)
    return collected


def what_to_measure(plan: Plan, settings: Settings) -> list[Point]:
    """The points of a collection; callers can ask before they create a database.

    Raises:
        UsageError: unknown device, dtype or operator, a plan without shapes for one, or more processes than there are
            devices or cores.
    """
    place = settings.place()
    if plan.device and plan.device != place.device.type:
        widest = max(plan.ranges.hidden_size, default=0)
        raise UsageError(
            f"plan {plan.name} is for a {plan.device} (hidden sizes up to {widest}), found {place.device.type}; "
            "expected a plan for your models: kernelcast collect plan --for MODEL -o FILE"
        )
    for level in settings.processes:
        check_processes(level, place, threads=settings.threads)
    return compute_points(plan, settings.operators)


def measured_points(database: Database, run: Run, load: Load | None = None) -> set[PointKey]:
    """Points in the database with the hardware, fabric, software and conditions of `run`, and under `load`."""
    return database.measured_points(**run.measured_under, load=load)


def known_points(database: Database, run: Run, again: Again, load: Load | None = None) -> set[PointKey]:
    """Points that a collection skips: points in the database that are not to be measured again.

    A point is flagged when measuring it again could clear a flag on every sample.
    """
    if again == "all":
        return set()
    known = measured_points(database, run, load)
    if again == "no":
        return known
    rows = database.read_samples(**run.measured_under, load=load)
    sound = {
        (row.operator, row.direction, row.dtype, row.vector)
        for row in rows
        if WORTH_AGAIN.isdisjoint(flag for flag, _ in row.flags)
    }
    timed = {(row.operator, row.direction, row.dtype, row.vector) for row in rows}
    return known - (timed - sound)


def is_known(op: Operator, dtype: str, vector: tuple[int, ...], known: set[PointKey]) -> bool:
    """Whether every direction of a point is among `known`."""
    return all((op.name, direction, dtype, vector) in known for direction in op.directions)
