"""`collect compute`: runs a plan's operators one by one on one device, and stores each as soon as it is measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Literal, TypeAlias

import torch

from kernelcast.collector.benches import Place, Point
from kernelcast.collector.code_digest import code_digest
from kernelcast.collector.interrupts import interrupts_held, terminations_interrupt
from kernelcast.collector.machine.probe import Fingerprints, probe, resolve_device
from kernelcast.collector.measuring.companions import check_processes
from kernelcast.collector.measuring.disturbance import WORTH_AGAIN
from kernelcast.collector.measuring.harness import Effort
from kernelcast.collector.measuring.host_memory import keep_freed_memory
from kernelcast.collector.measuring.measurer import Measurer
from kernelcast.collector.plans.plan import Plan, compute_points
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.load import Load
from kernelcast.runtime.operators import Operator
from kernelcast.store import Database, PointKey, Run, Sample, Status, utc_now
from kernelcast.store.doubts import flagged

Again: TypeAlias = Literal["no", "all", "flagged"]
"""What is measured once more of what a database already holds."""

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

DTYPE = "float32"
"""What is measured where nothing else is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Told after every point: how many of how many, and which operator came last."""

    done: int
    total: int
    operator: str


@dataclass(slots=True, kw_only=True)
class Collected:
    """What a collection did, in points (an operator at a workload); those measured may be `flagged` as doubtful."""

    measured: int = 0
    already_there: int = 0
    unsupported: int = 0
    failed: int = 0
    flagged: int = field(default=0, compare=False)
    first_failure: str = ""

    def count(self, samples: Sequence[Sample]) -> None:
        """Add a point, from its samples."""
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


def collect_compute(
    database: Database,
    plan: Plan,
    *,
    device: str = "auto",
    dtype: str = DTYPE,
    threads: int = 1,
    processes: Sequence[int] = (1,),
    load: Load | None = None,
    operators: tuple[str, ...] = (),
    again: Again = "no",
    effort: Effort | None = None,
    site: str = "",
    points: Sequence[Point] | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Collected:
    """Measure every point that the database does not hold yet for this hardware and software.

    Points are those of `plan`, or the given `points` of its ranges. Each of `processes` is a level: that number of
    processes of this node run an operator at once, one of which is measured (see companions.py). `load` is that of the
    plan unless it is given (see load.py); what was measured under the other one does not count as held. `again`
    measures what is held once more, all of it or what was flagged; older samples stay.

    Raises:
        UsageError: unknown device, dtype or operator, or more processes than there are devices or cores.
    """
    place, planned = what_to_measure(
        plan, device=device, dtype=dtype, operators=operators, threads=threads, processes=processes
    )
    points = planned if points is None else points
    load = load or plan.load
    if place.device.type == "cpu":
        keep_freed_memory()
    torch.set_num_threads(threads)
    torch.manual_seed(plan.seed)
    keys = probe(place.device, threads=threads)
    collected = Collected()
    levels = []
    for level in processes:
        run = compute_run(keys, plan, processes=level, site=site)
        known = known_points(database, run, again, load)
        todo = [point for point in points if not is_known(point.law, dtype, point.vector, known)]
        collected.already_there += len(points) - len(todo)
        levels.append((level, run, todo))
    total, done = sum(len(todo) for _, _, todo in levels), 0
    for level, run, todo in levels:
        if not todo:
            continue
        run_id = database.add_run(run, keys.compute, None, keys.software)
        with (
            terminations_interrupt(),
            Measurer(
                place,
                dtype=dtype,
                threads=threads,
                seed=plan.seed,
                processes=level,
                effort=effort,
                points=todo,
                load=load,
            ) as measurer,
        ):
            for point in todo:
                with interrupts_held():
                    samples = flagged(measurer.measure(point, run_id), keys.compute, None)
                    database.add_samples(samples)
                collected.count(samples)
                done += 1
                on_progress(Progress(done=done, total=total, operator=point.operator))
    return collected


def what_to_measure(
    plan: Plan,
    *,
    device: str,
    dtype: str,
    operators: tuple[str, ...],
    threads: int = 1,
    processes: Sequence[int] = (1,),
) -> tuple[Place, list[Point]]:
    """Where and what a collection measures; callers can ask before they make a database.

    Raises:
        UsageError: unknown device, dtype or operator, a plan without shapes for one, or more processes than there are
            devices or cores.
    """
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} is unknown; expected one of {', '.join(DTYPES)}")
    place = Place(resolve_device(device), DTYPES[dtype])
    if plan.device and plan.device != place.device.type:
        widest = max(plan.ranges.hidden_size, default=0)
        raise UsageError(
            f"plan {plan.name} is for a {plan.device} (hidden sizes up to {widest}), found {place.device.type}; "
            "expected a plan for your models: kernelcast collect plan --for MODEL -o FILE"
        )
    for level in processes:
        check_processes(level, place, threads=threads)
    return place, compute_points(plan, operators)


def compute_run(keys: Fingerprints, plan: Plan, *, site: str, processes: int = 1) -> Run:
    """The run that this collection's samples belong to."""
    return Run(
        started_at=utc_now(),
        kernelcast_version=version("kernelcast"),
        code_digest=code_digest(),
        command="collect compute",
        compute_id=keys.compute.digest,
        software_id=keys.software.digest,
        plan=plan.name,
        conditions={"processes_per_node": processes},
        site=site,
    )


def measured(database: Database, run: Run, load: Load | None = None) -> set[PointKey]:
    """Points that the database holds already: of the hardware, fabric, software and conditions of `run`, and `load`."""
    return database.measured_points(
        run.compute_id, run.software_id, fabric_id=run.fabric_id, conditions=run.conditions, load=load
    )


def known_points(database: Database, run: Run, again: Again, load: Load | None = None) -> set[PointKey]:
    """Points that a collection leaves out: what the database holds, unless that is to be measured again.

    A point is flagged when measuring it again could clear a flag on every sample.
    """
    if again == "all":
        return set()
    known = measured(database, run, load)
    if again == "no":
        return known
    rows = database.read_samples(
        compute_id=run.compute_id,
        software_id=run.software_id,
        fabric_id=run.fabric_id,
        conditions=run.conditions,
        load=load,
    )
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
