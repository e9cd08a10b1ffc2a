"""Figures of a traced run: time of steps by part, top kernels and operators, rates, ranks, streams.

Two runs are compared per step and rank: slower, faster, new and removed kernels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelcast.runtime.errors import DataError
from kernelcast.store.database import Database

Rows = Sequence[Mapping[str, Any]]

PARTS = (
    "compute_ms",
    "exposed_communication_ms",
    "memory_ms",
    "idle_host_ms",
    "idle_other_stream_ms",
    "idle_dependency_ms",
    "idle_unknown_ms",
)
"""Columns of `step_time` that divide the time of a device without overlap."""

_OF_RUN = "trace_id IN (SELECT id FROM trace WHERE run_id = :run)"
_QUERIES: Mapping[str, str] = {
    "steps": f"SELECT * FROM step_time WHERE {_OF_RUN} ORDER BY rank, trace_id, step_index IS NULL, step_index",
    "kernels": f"""
    SELECT kernel, class, sum(launches) AS launches, round(sum(total_us) / 1e3, 3) AS total_ms,
        round(sum(total_us) / sum(launches), 3) AS mean_us, round(sum(exposed_us) / 1e3, 3) AS exposed_ms,
        round(100.0 * sum(exposed_us) / sum(sum(exposed_us)) OVER (), 1) AS percent_of_busy
    FROM kernel_time WHERE {_OF_RUN} GROUP BY kernel, class ORDER BY exposed_ms DESC, total_ms DESC, kernel LIMIT :top
""",
    "host_operators": f"""
    SELECT host_operator, direction, class, sum(launches) AS launches, round(sum(total_us) / 1e3, 3) AS total_ms,
        round(sum(exposed_us) / 1e3, 3) AS exposed_ms,
        round(100.0 * sum(exposed_us) / sum(sum(exposed_us)) OVER (), 1) AS percent_of_busy
    FROM host_operator_time WHERE {_OF_RUN} GROUP BY host_operator, direction, class
    ORDER BY exposed_ms DESC, total_ms DESC, host_operator LIMIT :top
""",
    "products": f"""
    SELECT rank, host_operator, batch, m, k, n, dtype, calls, mean_us, teraflops_per_s, percent_of_peak, bound,
        percent_of_roofline
    FROM product_rate WHERE {_OF_RUN} ORDER BY total_us DESC, m, k, n LIMIT :top
""",
    "collectives": f"""
    SELECT rank, collective, group_size, message_bytes, dtype, calls, mean_us, bus_gb_per_s, min_us, best_bus_gb_per_s,
        round(exposed_us / 1e3, 3) AS exposed_ms
    FROM collective_rate WHERE {_OF_RUN} ORDER BY total_us DESC LIMIT :top
""",
    "ranks": f"""
    SELECT rank, count(*) AS steps, round(avg(device_ms), 3) AS device_ms, round(avg(compute_ms), 3) AS compute_ms,
        round(avg(behind_ms), 3) AS behind_ms, round(avg(communication_ms), 3) AS communication_ms,
        round(avg(exposed_communication_ms), 3) AS exposed_communication_ms,
        round(avg(idle_host_ms), 3) AS idle_host_ms, sum(is_straggler) AS times_slowest
    FROM rank_time WHERE {_OF_RUN} AND step IS NOT NULL GROUP BY trace_id, rank ORDER BY rank
""",
    "streams": f"SELECT * FROM stream_idle WHERE {_OF_RUN} ORDER BY rank, device, busy_ms DESC LIMIT :top",
}
TABLES: Mapping[str, str] = {
    "steps": "steps",
    "ranks": "ranks",
    "kernels": "kernels",
    "host_operators": "operators of the host",
    "products": "matrix products",
    "collectives": "collectives",
    "streams": "streams",
}
"""Titles of a report's tables by their names, in the order in which they are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReport:
    """The figures of a run: rows of the views of schema.sql, with units in the names of columns."""

    run_id: str
    hardware: str
    software: str
    steps: Rows
    ranks: Rows
    kernels: Rows
    host_operators: Rows
    products: Rows
    collectives: Rows
    streams: Rows

    @property
    def parts_ms(self) -> dict[str, float]:
        """Mean time of a step by part, ms, over the marked steps of all ranks, or the whole trace if none is marked."""
        steps = [step for step in self.steps if step["step"] is not None] or self.steps
        return {part: sum(step[part] or 0.0 for step in steps) / len(steps) for part in PARTS}


def traced_runs(database: Database, run_id: str = "") -> list[str]:
    """Ids of runs with timelines that begin with `run_id`, oldest first.

    Raises:
        DataError: no run matches.
    """
    rows = database.query(
        "SELECT run_id, min(measured_at) AS at FROM trace JOIN timeline ON timeline.trace_id = trace.id"
        " WHERE substr(run_id, 1, ?) = ? GROUP BY run_id ORDER BY at, run_id",
        [len(run_id), run_id],
    )
    if not rows:
        wanted = f"run {run_id} with a trace" if run_id else "trace with events"
        raise DataError(f"{database.path}: holds no {wanted}, expected one that `kernelcast ingest` stored")
    return [row["run_id"] for row in rows]


def trace_report(database: Database, run_id: str, *, top: int = 15) -> TraceReport:
    """The figures of a run; at most `top` rows of long tables."""
    [about] = database.query(
        "SELECT hardware.description AS hardware, software.description AS software FROM run"
        " JOIN hardware ON hardware.id = compute_id JOIN software ON software.id = software_id WHERE run.id = ?",
        [run_id],
    )

    tables: dict[str, Any] = {
        name: database.query(sql, {"run": run_id, "top": top}) for name, sql in _QUERIES.items()
    }
    return TraceReport(run_id=run_id, **about, **tables)


_PARTS = (
    f"SELECT {', '.join(f'sum({part}) AS {part}' for part in PARTS)} FROM step_time WHERE run_id = ? AND {{}}"
)
_KERNEL_SUMS = """
    SELECT name, class, count(*) AS launches, sum(duration_us) AS total_us, sum(exposed_us) AS exposed_us
    FROM trace_event WHERE run_id = ? AND {} GROUP BY name, class
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A part of the step or a kernel in two runs; times in ms per step and rank. None: absent from the run."""

    name: str
    class_: str
    one_ms: float | None
    two_ms: float | None
    one_launches: float | None = None
    two_launches: float | None = None

    @property
    def change_ms(self) -> float:
        """Time in the second run minus time in the first."""
        return (self.two_ms or 0.0) - (self.one_ms or 0.0)

    @property
    def kind(self) -> str:
        """`new`, `gone`, `slower`, `faster`, or empty."""
        if self.one_ms is None or self.two_ms is None:
            return "new" if self.one_ms is None else "gone"
        return "slower" if self.change_ms > 0 else "faster" if self.change_ms < 0 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceComparison:
    """Parts of the step in order, and kernels by absolute change, largest first."""

    one_steps: int  # of all ranks
    two_steps: int
    parts: tuple[Change, ...]
    kernels: tuple[Change, ...]

    @property
    def step(self) -> Change:
        """The whole step."""
        one = sum(part.one_ms or 0.0 for part in self.parts)
        two = sum(part.two_ms or 0.0 for part in self.parts)
        return Change(name="step", class_="", one_ms=one, two_ms=two)


def compare_traces(one: Database, one_run: str, two: Database, two_run: str) -> TraceComparison:
    """Compare two runs with timelines; if a run has marked steps, its other events are left out."""
    one_steps, one_parts, one_kernels = _per_step(one, one_run)
    two_steps, two_parts, two_kernels = _per_step(two, two_run)
    kernels = [
        Change(
            name=name,
            class_=class_,
            one_ms=first[1] if (first := one_kernels.get((name, class_))) else None,
            two_ms=second[1] if (second := two_kernels.get((name, class_))) else None,
            one_launches=first[0] if first else None,
            two_launches=second[0] if second else None,
        )
        for name, class_ in sorted(one_kernels.keys() | two_kernels.keys())
    ]
    return TraceComparison(
        one_steps=one_steps,
        two_steps=two_steps,
        parts=tuple(
            Change(name=part, class_="", one_ms=one_parts[part], two_ms=two_parts[part]) for part in PARTS
        ),
        kernels=tuple(sorted(kernels, key=lambda change: -abs(change.change_ms))),
    )


def _per_step(
    database: Database, run_id: str
) -> tuple[int, dict[str, float], dict[tuple[str, str], tuple[float, float]]]:
    """Number of steps of all ranks; per step, ms by part, and launches and ms by kernel and class."""
    marked = "step IS NOT NULL"
    count = database.query(f"SELECT count(*) AS steps FROM step_time WHERE run_id = ? AND {marked}", [run_id])
    steps = int(count[0]["steps"])
    if not steps:  # without marks, a trace is one step
        marked = "1"
        [row] = database.query("SELECT count(*) AS steps FROM step_time WHERE run_id = ?", [run_id])
        steps = int(row["steps"])
    [parts] = database.query(_PARTS.format(marked), [run_id])
    kernels = database.query(_KERNEL_SUMS.format(marked), [run_id])
    return (
        steps,
        {part: (total_ms or 0.0) / steps for part, total_ms in parts.items()},
        {(k["name"], k["class"]): (k["launches"] / steps, k["total_us"] / steps / 1e3) for k in kernels},
    )
