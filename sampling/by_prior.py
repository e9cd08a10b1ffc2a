"""A few points of a plan to correct a prior: `collect compute --prior NAME --points N`, and their cost."""

from dataclasses import dataclass

import numpy as np

from kernelcast.collector.benches import Point
from kernelcast.collector.compute import Collected, Collection, Progress, collect_compute
from kernelcast.collector.measuring.measurer import device_memory_bytes, point_bytes
from kernelcast.collector.plans.plan import distinct_points, planned_operators
from kernelcast.collector.plans.plan_ranges import Plan
from kernelcast.collector.settings import Settings
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.operators import Operator
from kernelcast.sampling.design import FIRST_ROWS, positions, space_filling
from kernelcast.store import Database
from kernelcast.train.dataset import Array
from kernelcast.train.prior import MOST_CANDIDATES, Prior, answered, most_telling


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorPlan:
    """Points to measure; `apart` are operators that the prior lacks: they get enough for a first fit of their own."""

    points: tuple[Point, ...]
    apart: tuple[str, ...]


def points_by_prior(
    prior: Prior, plan: Plan, operators: tuple[str, ...], count: int, *, element_bytes: int, memory_bytes: int
) -> PriorPlan:
    """Choose `count` points of every planned operator, in turn, among the plan's shapes that fit in memory; the same
    for the same plan, prior and count. UsageError where the plan has none for an operator.
    """
    planned = planned_operators(plan, operators)
    found: list[list[Point]] = []
    apart = []
    for op in planned:
        listed = distinct_points(plan, [op])[op.name]
        fitting = [point for point in listed if point_bytes(point, element_bytes) <= memory_bytes]
        rng = np.random.default_rng(plan.seed)
        drawn = [fitting[n] for n in sorted(rng.permutation(len(fitting))[:MOST_CANDIDATES])]
        vectors = np.array([point.vector for point in drawn], dtype=np.float64)
        if keys := answered(prior, op):
            chosen = most_telling(prior, keys, vectors, count) if drawn else []
        else:
            chosen = space_filling(positions(vectors), [], max(count, FIRST_ROWS)) if drawn else []
            apart.append(op.name)
        found.append([drawn[number] for number in chosen])
    turns = range(max(map(len, found), default=0))
    return PriorPlan(
        points=tuple(own[turn] for turn in turns for own in found if turn < len(own)),
        apart=tuple(apart),
    )


def calls_us(prior: Prior, op: Operator, vectors: Array) -> Array | None:
    """Time of a call in all directions by the prior, [rows] in µs; None where it lacks a direction."""
    keys = answered(prior, op)
    known = {key[1] for key in keys} | {part for _, whole in keys for part in op.sums.get(whole, ())}
    if not known.issuperset(op.directions):
        return None
    total = np.zeros(len(vectors))
    for _, direction in keys:
        # A sum counts where its parts are not known separately.
        if not any((op.name, part) in keys for part in op.sums.get(direction, ())):
            total += prior.predicted_us((op.name, direction), vectors)
    return total


def collect_by_prior(
    database: Database,
    plan: Plan,
    bundle: Bundle,
    count: int,
    settings: Settings,
    on_progress: Progress = lambda done, total, operator: None,
) -> tuple[Collected, PriorPlan]:
    """Measure `count` points of every operator, chosen for the prior `bundle`; errors as `collect_compute`."""
    collection = Collection(plan, settings)
    chosen = points_by_prior(
        Prior.of(bundle, collection.keys.compute, settings.dtype),
        plan,
        settings.operators,
        count,
        element_bytes=collection.place.dtype.itemsize,
        memory_bytes=device_memory_bytes(collection.place.device),
    )
    return collect_compute(database, plan, settings, points=chosen.points, on_progress=on_progress), chosen
