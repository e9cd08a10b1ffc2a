"""What a plan would measure: points per operator and role, which fit, which are there, how long the rest takes."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kernelcast.collector.benches import Point
from kernelcast.collector.compute import Collection, is_known, measured, what_to_measure
from kernelcast.collector.measuring.load import FIRST_SECONDS
from kernelcast.collector.plans.plan import Plan
from kernelcast.collector.plans.plan_memory import device_memory_bytes, point_bytes
from kernelcast.collector.settings import Settings
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.hardware.load import Load
from kernelcast.sampling.by_hardware import HardwareTimes
from kernelcast.sampling.by_prior import points_by_prior
from kernelcast.sampling.cost import Times, cost_of_measuring, cost_on_hardware, total_seconds
from kernelcast.sampling.stored_times import known_times
from kernelcast.store import Database, PointKey
from kernelcast.train.prior import Prior

FORMAT = "kernelcast.plan/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOperator:
    """An operator in a role: points, those that fit in memory, those measured, those left and their seconds."""

    operator: str
    role: str
    points: int
    fitting: int
    measured: int
    to_measure: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A plan on this device. `source` describes how the seconds are estimated.

    `settling_s` are those of work before sustained load is reached, once for each level that is measured.
    """

    plan: str
    device: str
    dtype: str
    memory_bytes: int
    load: Load
    source: str
    settling_s: float
    rows: tuple[PlannedOperator, ...]

    @property
    def seconds(self) -> float:
        """All of the time."""
        return self.settling_s + sum(row.seconds for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, form `kernelcast.plan/1` (docs/json.md)."""
        plain = {
            name: getattr(self, name)
            for name in ("plan", "device", "dtype", "load", "memory_bytes", "source")
        }
        operators = [asdict(row) | {"seconds": round(row.seconds, 1)} for row in self.rows]
        seconds = {"settling_s": self.settling_s, "seconds": round(self.seconds, 1)}
        return {"format": FORMAT, **plain, **seconds, "operators": operators}


def preview(
    plan: Plan,
    settings: Settings,
    *,
    database_path: Path | None = None,
    memory_bytes: int = 0,
    prior: Bundle | None = None,
    points_each: int = 0,
    hardware: Bundle | None = None,
) -> Preview:
    """What `collect compute` with the same arguments would measure; each level of `processes` counts.

    With a `prior`, `points_each` of every operator (by_prior.py) instead of the plan's. With `hardware`, it is measured
    on that device, in the element type of its operators.

    Raises:
        UsageError, DataError: as `collect compute` would.
    """
    there = None if hardware is None else HardwareTimes(hardware)
    if there is not None:
        plan, settings = replace(plan, device=""), replace(settings, dtype=there.dtype)
    points = what_to_measure(plan, settings)
    collection = Collection(plan, settings)
    place, load, processes = collection.place, collection.load, settings.processes
    times: Times = {}
    known: list[set[PointKey]] = [set() for _ in processes]
    if database_path is not None:
        with Database.open(database_path, read_only=True) as database:
            runs = [collection.run(level) for level in processes]
            known = [measured(database, run, load) for run in runs]
            times = known_times(database, runs[0], settings.dtype, load)
    start = None if prior is None else Prior.of(prior, collection.keys.compute, settings.dtype)
    cost = (
        cost_of_measuring(place, times, prior=start, load=load)
        if there is None
        else cost_on_hardware(place, there)
    )
    of_device = there.device.memory_bytes if there is not None and there.device is not None else 0
    memory = memory_bytes or of_device or device_memory_bytes(place.device)
    if start is not None:
        chosen = points_by_prior(
            start,
            plan,
            settings.operators,
            points_each,
            element_bytes=place.dtype.itemsize,
            memory_bytes=memory,
        )
        points = list(chosen.points)
    by_role: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        by_role.setdefault((point.operator, point.role), []).append(point)
    rows = []
    levels_todo: set[int] = set()
    for (operator, role), own in by_role.items():
        # Processes share a CPU's memory; each has a GPU of its own.
        fitting = found = 0
        todo: list[Point] = []
        for level, level_known in zip(processes, known, strict=True):
            sharing = level if place.device.type == "cpu" and there is None else 1
            for point in own:
                fits = point_bytes(point, place.dtype.itemsize) * sharing <= memory
                is_there = is_known(point.law, settings.dtype, point.vector, level_known)
                fitting, found = fitting + fits, found + is_there
                if fits and not is_there:
                    todo.append(point)
                    levels_todo.add(level)
        rows.append(
            PlannedOperator(
                operator=operator,
                role=role,
                points=len(own) * len(processes),
                fitting=fitting,
                measured=found,
                to_measure=len(todo),
                seconds=total_seconds(cost, todo),
            )
        )
    return Preview(
        plan=plan.name,
        device=str(place.device) if there is None else there.name,
        dtype=settings.dtype,
        memory_bytes=memory,
        load=load,
        source=cost.source,
        settling_s=len(levels_todo) * FIRST_SECONDS if load.is_sustained else 0.0,
        rows=tuple(rows),
    )
