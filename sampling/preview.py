"""A plan before it is measured: points per operator and role, how many fit and are stored, and the time of the rest."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kernelcast.collector.benches import Point
from kernelcast.collector.compute import Collection, is_known, measured_points, what_to_measure
from kernelcast.collector.measuring.load import FIRST_SECONDS
from kernelcast.collector.measuring.measurer import device_memory_bytes, point_bytes
from kernelcast.collector.plans.plan_ranges import Plan
from kernelcast.collector.settings import Settings
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.hardware.devices import Load
from kernelcast.runtime.json_text import values_of
from kernelcast.sampling.by_prior import points_by_prior
from kernelcast.sampling.cost import (
    Cost,
    HardwareTimes,
    Times,
    cost_of_measuring,
    cost_on_hardware,
    stored_times,
    total_seconds,
)
from kernelcast.store import Database, PointKey
from kernelcast.train.prior import Prior

FORMAT = "kernelcast.plan/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOperator:
    """An operator in a role: all points, points that fit in memory, measured ones, ones left and their seconds."""

    operator: str
    role: str
    points: int
    fitting: int
    measured: int
    to_measure: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A plan on this device, how its seconds are estimated, and the time until sustained load is reached."""

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
        return self.settling_s + sum(row.seconds for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, form `kernelcast.plan/1` (docs/json.md)."""
        plain = values_of(self, "plan", "device", "dtype", "load", "memory_bytes", "source")
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
    """The points that `collect compute` with the same arguments would measure, at every level of `processes`: with a
    `prior`, `points_each` of every operator; with `hardware`, on that device and in its type.
    """
    target = None if hardware is None else HardwareTimes(hardware)
    if target is not None:
        plan, settings = replace(plan, device=""), replace(settings, dtype=target.dtype)
    points = what_to_measure(plan, settings)
    collection = Collection(plan, settings)
    place, load = collection.place, collection.load
    known, times = _stored(collection, database_path)
    start = None if prior is None else Prior.of(prior, collection.keys.compute, settings.dtype)
    cost = (
        cost_of_measuring(place, times, prior=start, load=load)
        if target is None
        else cost_on_hardware(place, target)
    )
    target_bytes = target.device.memory_bytes if target is not None and target.device is not None else 0
    memory = memory_bytes or target_bytes or device_memory_bytes(place.device)
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
    # Processes share a CPU's memory; each has a GPU of its own.
    shares_memory = place.device.type == "cpu" and target is None

    def fits(point: Point, level: int) -> bool:
        return point_bytes(point, place.dtype.itemsize) * (level if shares_memory else 1) <= memory

    rows, levels_todo = _planned(points, known, fits, cost, settings.dtype)
    return Preview(
        plan=plan.name,
        device=str(place.device) if target is None else target.name,
        dtype=settings.dtype,
        memory_bytes=memory,
        load=load,
        source=cost.source,
        settling_s=len(levels_todo) * FIRST_SECONDS if load.is_sustained else 0.0,
        rows=tuple(rows),
    )


def _planned(
    points: Sequence[Point],
    known: Sequence[tuple[int, set[PointKey]]],
    fits: Callable[[Point, int], bool],
    cost: Cost,
    dtype: str,
) -> tuple[list[PlannedOperator], set[int]]:
    """The operators, and the levels of processes at which something is left to measure."""
    by_role: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        by_role.setdefault((point.operator, point.role), []).append(point)
    levels_todo: set[int] = set()
    rows = []
    for (operator, role), own in by_role.items():
        todo: list[Point] = []
        fitting = found = 0
        for level, level_known in known:
            within = [point for point in own if fits(point, level)]
            measured = {p for p in own if is_known(p.law, dtype, p.vector, level_known)}
            fitting, found = fitting + len(within), found + len(measured)
            if left := [point for point in within if point not in measured]:
                todo += left
                levels_todo.add(level)
        rows.append(
            PlannedOperator(
                operator=operator,
                role=role,
                points=len(own) * len(known),
                fitting=fitting,
                measured=found,
                to_measure=len(todo),
                seconds=total_seconds(cost, todo),
            )
        )
    return rows, levels_todo


def _stored(
    collection: Collection, database_path: Path | None
) -> tuple[list[tuple[int, set[PointKey]]], Times]:
    """Points that the database holds, by level of processes, and the times of the first level."""
    processes, dtype = collection.settings.processes, collection.settings.dtype
    if database_path is None:
        return [(level, set()) for level in processes], {}
    with Database.open(database_path, read_only=True) as database:
        known = [
            (level, measured_points(database, collection.run(level), collection.load)) for level in processes
        ]
        return known, stored_times(database, collection.run(processes[0]), dtype, collection.load)
