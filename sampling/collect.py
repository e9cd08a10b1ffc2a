"""`collect compute --budget`: the chooser and the collector together."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernelcast.collector.benches import Place
from kernelcast.collector.chosen import collect_chosen
from kernelcast.collector.compute import DTYPES, Collected, compute_run
from kernelcast.collector.machine.probe import probe, resolve_device
from kernelcast.collector.measuring.core_binding import bound, own_cores
from kernelcast.collector.measuring.harness import Effort
from kernelcast.collector.measuring.host_memory import keep_freed_memory
from kernelcast.collector.plans.plan import Plan
from kernelcast.collector.plans.plan_memory import device_memory_bytes
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.hardware.load import Load
from kernelcast.sampling.chooser import Chooser
from kernelcast.sampling.cost import cost_of_measuring
from kernelcast.sampling.known import known_times
from kernelcast.store import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The result of a budget: `errors` are (operator, cross-validated error or None, workloads known)."""

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
    *,
    budget_s: float,
    target: float = 0.0,
    device: str = "auto",
    dtype: str = "float32",
    threads: int = 1,
    load: Load | None = None,
    operators: tuple[str, ...] = (),
    memory_bytes: int = 0,
    effort: Effort | None = None,
    site: str = "",
    on_progress: Callable[[BudgetProgress], None] = lambda progress: None,
    on_short: Callable[[float], None] = lambda needed_s: None,
    on_too_large: Callable[[tuple[str, ...], int], None] = lambda operators, memory_bytes: None,
) -> Reached:
    """Measure what helps most within a budget of seconds; `target` ends an operator early. See `Chooser`.

    `load` is that of the plan unless it is given.

    Before measuring, `on_short` gets the seconds until each operator has the workloads that `train` needs, if they
    exceed the budget; `on_too_large` gets the operators without a shape that fits in memory, and the memory in bytes.

    Raises:
        UsageError: unknown device, dtype or operator, or the plan has no shape for one.
        DataError: no shape of any operator fits in memory.
    """
    check_dtype(dtype)
    load = load or plan.load
    place = Place(resolve_device(device), DTYPES[dtype])
    if place.device.type == "cpu":
        keep_freed_memory()  # part of the software's fingerprint
    torch.set_num_threads(threads)
    keys = probe(place.device, threads=threads)
    run = compute_run(keys, plan, site=site)
    times = known_times(database, run, dtype, load)
    # The first product starts torch's threads, which stay where they begin.
    with bound(own_cores(0, 1, threads=threads) if place.device.type == "cpu" else ()):
        cost = cost_of_measuring(place, times, load=load)
    memory_bytes = memory_bytes or device_memory_bytes(place.device)
    chooser = Chooser(
        plan,
        operators,
        cost=cost,
        times=times,
        budget_s=budget_s,
        target=target,
        memory_bytes=memory_bytes,
    )
    if len(chooser.too_large) == len(chooser.states):
        raise DataError(
            f"plan {plan.name}: no shape of {', '.join(chooser.too_large)} fits in {memory_bytes / 2**30:.1f} GiB"
        )
    if chooser.too_large:
        on_too_large(chooser.too_large, memory_bytes)
    if chooser.needed_s > budget_s:
        on_short(chooser.needed_s)
    collected = collect_chosen(
        database,
        chooser,
        run,
        keys,
        place,
        dtype=dtype,
        threads=threads,
        seed=plan.seed,
        load=load,
        effort=effort,
        on_progress=lambda point: on_progress(
            BudgetProgress(
                elapsed_s=chooser.elapsed_s,
                budget_s=budget_s,
                operator=point.operator,
                error=chooser.states[point.operator].error,
                mean_error=chooser.mean_error,
            )
        ),
    )
    return Reached(
        collected=collected,
        errors=tuple((name, state.error, state.known) for name, state in chooser.states.items()),
        mean_error=chooser.mean_error,
        elapsed_s=chooser.elapsed_s,
    )


def check_dtype(dtype: str) -> None:
    """Whether a dtype can be measured.

    Raises:
        UsageError: it is unknown.
    """
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} is unknown; expected one of {', '.join(DTYPES)}")
