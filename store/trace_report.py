"""Figures of a traced run: time of steps by part, top kernels and operators, rates, ranks, streams."""

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
_STEPS = f"SELECT * FROM step_time WHERE {_OF_RUN} ORDER BY rank, trace_id, step_index IS NULL, step_index"
_KERNELS = f"""
    SELECT kernel, class, sum(launches) AS launches, round(sum(total_us) / 1e3, 3) AS total_ms,
        round(sum(total_us) / sum(launches), 3) AS mean_us, round(sum(exposed_us) / 1e3, 3) AS exposed_ms,
        round(100.0 * sum(exposed_us) / sum(sum(exposed_us)) OVER (), 1) AS percent_of_busy
    FROM kernel_time WHERE {_OF_RUN} GROUP BY kernel, class ORDER BY exposed_ms DESC, total_ms DESC, kernel LIMIT :top
"""
_OPERATORS = f"""
    SELECT host_operator, direction, class, sum(launches) AS launches, round(sum(total_us) / 1e3, 3) AS total_ms,
        round(sum(exposed_us) / 1e3, 3) AS exposed_ms,
        round(100.0 * sum(exposed_us) / sum(sum(exposed_us)) OVER (), 1) AS percent_of_busy
    FROM host_operator_time WHERE {_OF_RUN} GROUP BY host_operator, direction, class
    ORDER BY exposed_ms DESC, total_ms DESC, host_operator LIMIT :top
"""
_PRODUCTS = f"""
    SELECT rank, host_operator, batch, m, k, n, dtype, calls, mean_us, teraflops_per_s, percent_of_peak, bound,
        percent_of_roofline
    FROM product_rate WHERE {_OF_RUN} ORDER BY total_us DESC, m, k, n LIMIT :top
"""
_COLLECTIVES = f"""
    SELECT rank, collective, group_size, message_bytes, dtype, calls, mean_us, bus_gb_per_s, min_us, best_bus_gb_per_s,
        round(exposed_us / 1e3, 3) AS exposed_ms
    FROM collective_rate WHERE {_OF_RUN} ORDER BY total_us DESC LIMIT :top
"""
_RANKS = f"""
    SELECT rank, count(*) AS steps, round(avg(device_ms), 3) AS device_ms, round(avg(compute_ms), 3) AS compute_ms,
        round(avg(behind_ms), 3) AS behind_ms, round(avg(communication_ms), 3) AS communication_ms,
        round(avg(exposed_communication_ms), 3) AS exposed_communication_ms,
        round(avg(idle_host_ms), 3) AS idle_host_ms, sum(is_straggler) AS times_slowest
    FROM rank_time WHERE {_OF_RUN} AND step IS NOT NULL GROUP BY trace_id, rank ORDER BY rank
"""
_STREAMS = f"SELECT * FROM stream_idle WHERE {_OF_RUN} ORDER BY rank, device, busy_ms DESC LIMIT :top"

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

    def asked(sql: str) -> Rows:
        return database.query(sql, {"run": run_id, "top": top})

    return TraceReport(
        run_id=run_id,
        **about,
        steps=asked(_STEPS),
        ranks=asked(_RANKS),
        kernels=asked(_KERNELS),
        host_operators=asked(_OPERATORS),
        products=asked(_PRODUCTS),
        collectives=asked(_COLLECTIVES),
        streams=asked(_STREAMS),
    )
