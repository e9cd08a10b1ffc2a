"""`collect compute --budget`: measures the points that the chooser picks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from kernelcast.collector.benches import Point
from kernelcast.collector.compute import Collected, Collection
from kernelcast.collector.measuring.core_binding import bound, own_cores
from kernelcast.collector.measuring.measurer import device_memory_bytes
from kernelcast.collector.plans.plan_ranges import Plan
from kernelcast.collector.settings import Settings
from kernelcast.runtime.errors import DataError
from kernelcast.sampling.chooser import Chooser
from kernelcast.sampling.cost import cost_of_measuring, stored_times
from kernelcast.store import Database, Run, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The result of a budget: `errors` are (operator, cross-validated error or None, known workloads)."""

    collected: Collected
    errors: tuple[tuple[str, float | None, int], ...]
    mean_error: float | None
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetProgress:
    """Reported after every point: seconds used and budgeted, the operator measured last and its error."""

    elapsed_s: float
    budget_s: float
    operator: str
    error: float | None
    mean_error: float | None


def collect_within(
    database: Database,
    plan: Plan,
    settings: Settings,
    *,
    budget_s: float,
    target: float = 0.0,
    on_progress: Callable[[BudgetProgress], None] = lambda progress: None,
    on_short: Callable[[float], None] = lambda needed_s: None,
    on_too_large: Callable[[tuple[str, ...], int], None] = lambda operators, memory_bytes: None,
) -> Reached:
    """Measure the most useful points within a budget of seconds; `target` ends an operator early. `on_short` first gets
    the missing seconds, `on_too_large` operators without a shape that fits in memory. UsageError for an unknown device,
    dtype or operator; DataError where nothing fits.
    """
    collection = Collection(plan, settings)
    run, memory_bytes = collection.run(), device_memory_bytes(collection.place.device)
    chooser = _chooser(database, collection, run, budget_s=budget_s, target=target, memory_bytes=memory_bytes)
    if len(chooser.too_large) == len(chooser.states):
        raise DataError(
            f"plan {plan.name}: no shape of {', '.join(chooser.too_large)} fits in {memory_bytes / 2**30:.1f} GiB"
        )
    if chooser.too_large:
        on_too_large(chooser.too_large, memory_bytes)
    if chooser.needed_s > budget_s:
        on_short(chooser.needed_s)
    collected = Collected(already_there=chooser.already_there)

    def measured_one(point: Point, samples: Sequence[Sample]) -> None:
        collected.count(samples)
        chooser.tell(point, samples)
        on_progress(
            BudgetProgress(
                elapsed_s=chooser.elapsed_s,
                budget_s=budget_s,
                operator=point.operator,
                error=chooser.states[point.operator].error,
                mean_error=chooser.mean_error,
            )
        )

    if (first := chooser.next()) is not None:  # no run without a measurement
        collection.measure(database, run, chain([first], iter(chooser.next, None)), measured_one)
    return Reached(
        collected=collected,
        errors=tuple((name, state.error, state.known) for name, state in chooser.states.items()),
        mean_error=chooser.mean_error,
        elapsed_s=chooser.elapsed_s,
    )


def _chooser(
    database: Database, collection: Collection, run: Run, *, budget_s: float, target: float, memory_bytes: int
) -> Chooser:
    settings, place = collection.settings, collection.place
    times = stored_times(database, run, settings.dtype, collection.load)
    # The first product starts torch's threads, which stay on the cores where they begin.
    with bound(own_cores(0, 1, threads=settings.threads) if place.device.type == "cpu" else ()):
        cost = cost_of_measuring(place, times, load=collection.load)
    return Chooser(
        collection.plan,
        settings.operators,
        cost=cost,
        times=times,
        budget_s=budget_s,
        target=target,
        memory_bytes=memory_bytes,
    )
