"""`collect compute`: runs a plan's operators one by one on one device, and stores each as soon as it is measured."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version

import torch

from kernelcast.collector.benches import BENCHES, Place, UnsupportedError
from kernelcast.collector.code_digest import code_digest
from kernelcast.collector.harness import Effort, measure
from kernelcast.collector.host_memory import keep_freed_memory
from kernelcast.collector.interrupts import interrupts_held
from kernelcast.collector.plan import Plan, Point, compute_points
from kernelcast.collector.probe import Fingerprints, probe, resolve_device
from kernelcast.collector.reference import Reference
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.operators import Direction, Operator
from kernelcast.store import Database, PointKey, Repetition, Run, Sample, Status, utc_now

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
    """What a collection did, in points (an operator at a shape)."""

    measured: int = 0
    already_there: int = 0
    unsupported: int = 0
    failed: int = 0
    first_failure: str = ""


def collect_compute(
    database: Database,
    plan: Plan,
    *,
    device: str = "auto",
    dtype: str = DTYPE,
    threads: int = 1,
    operators: tuple[str, ...] = (),
    again: bool = False,
    effort: Effort | None = None,
    site: str = "",
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Collected:
    """Measure every point of `plan` that the database does not hold yet for this hardware and software.

    With `again` all points are measured once more; older samples stay.

    Raises:
        UsageError: unknown device, dtype or operator.
    """
    place, points = what_to_measure(plan, device=device, dtype=dtype, operators=operators)
    if place.device.type == "cpu":
        keep_freed_memory()
    torch.set_num_threads(threads)
    torch.manual_seed(plan.seed)
    keys = probe(place.device, threads=threads)
    run = compute_run(keys, plan, site=site)
    known = set() if again else measured(database, run)
    todo = [point for point in points if not is_known(point.operator, dtype, point.vector, known)]
    collected = Collected(already_there=len(points) - len(todo))
    if not todo:
        return collected
    run_id = database.add_run(run, keys.compute, None, keys.software)
    reference = Reference(place.device, place.dtype)
    reference.saturate()
    for done, point in enumerate(todo, start=1):
        with interrupts_held():
            samples = _measure_point(point, place, run_id, dtype, reference, effort or Effort())
            database.add_samples(samples)
        _count(collected, samples)
        on_progress(Progress(done=done, total=len(todo), operator=point.operator.name))
    return collected


def what_to_measure(
    plan: Plan, *, device: str, dtype: str, operators: tuple[str, ...]
) -> tuple[Place, list[Point]]:
    """Where and what a collection measures; callers can ask before they make a database.

    Raises:
        UsageError: unknown device, dtype or operator, or a plan without shapes for one.
    """
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} is unknown; expected one of {', '.join(DTYPES)}")
    return Place(resolve_device(device), DTYPES[dtype]), compute_points(plan, operators)


def compute_run(keys: Fingerprints, plan: Plan, *, site: str) -> Run:
    """The run that this collection's samples belong to."""
    return Run(
        started_at=utc_now(),
        kernelcast_version=version("kernelcast"),
        code_digest=code_digest(),
        command="collect compute",
        compute_id=keys.compute.digest,
        software_id=keys.software.digest,
        plan=plan.name,
        conditions={"processes_per_node": 1},
        site=site,
    )


def measured(database: Database, run: Run) -> set[PointKey]:
    """Points that the database holds already for the hardware, fabric, software and conditions of `run`."""
    return database.measured_points(
        run.compute_id, run.software_id, fabric_id=run.fabric_id, conditions=run.conditions
    )


def is_known(op: Operator, dtype: str, vector: tuple[int, ...], known: set[PointKey]) -> bool:
    """Whether every direction of a point is among `known`."""
    return all((op.name, direction, dtype, vector) in known for direction in op.directions)


def _count(collected: Collected, samples: list[Sample]) -> None:
    statuses = {sample.status for sample in samples}
    if Status.FAILED in statuses:
        collected.failed += 1
        sample = samples[0]
        collected.first_failure = (
            collected.first_failure or f"{sample.operator} {list(sample.vector)}: {sample.reason}"
        )
    elif Status.UNSUPPORTED in statuses:
        collected.unsupported += 1
    else:
        collected.measured += 1


def _measure_point(
    point: Point, place: Place, run_id: str, dtype: str, reference: Reference, effort: Effort
) -> list[Sample]:
    name, directions = point.operator.name, point.operator.directions
    measured_at, before_us = utc_now(), reference.time_us()
    try:
        repetitions = measure(BENCHES[name], point.shape, place, directions, effort)
    except Exception as error:
        # Whatever a kernel does, the run goes on and the reason is kept with the sample.
        status, reason = _verdict(error)
        return _without_time(point, run_id, dtype, status, reason, measured_at)
    reference_us = (before_us + reference.time_us()) / 2
    return [
        _sample(point, run_id, dtype, direction, found, reference_us, measured_at)
        for direction, found in repetitions.items()
    ]


def _verdict(error: Exception) -> tuple[Status, str]:
    """What an operator that raised is stored as; torch adds its stack to messages, so their first line counts."""
    message = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, UnsupportedError | NotImplementedError):
        return Status.UNSUPPORTED, message
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in message:
        return Status.FAILED, f"out of memory: {message}"
    return Status.FAILED, f"{type(error).__name__}: {message}"


def _sample(
    point: Point,
    run_id: str,
    dtype: str,
    direction: Direction,
    repetitions: list[Repetition],
    reference_us: float,
    measured_at: str,
) -> Sample:
    return Sample.from_repetitions(
        run_id=run_id,
        operator=point.operator.name,
        direction=direction,
        dtype=dtype,
        vector=point.vector,
        repetitions=repetitions,
        reference_us=reference_us,
        measured_at=measured_at,
    )


def _without_time(
    point: Point, run_id: str, dtype: str, status: Status, reason: str, measured_at: str
) -> list[Sample]:
    return [
        Sample.without_time(
            run_id=run_id,
            operator=point.operator.name,
            direction=direction,
            dtype=dtype,
            vector=point.vector,
            status=status,
            reason=reason[:500] or "no reason given",
            measured_at=measured_at,
        )
        for direction in point.operator.directions
    ]
