"""Figures of a traced run: time of steps by part, top kernels and operators, rates, ranks, streams."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelcast.runtime.errors import DataError
from kernelcast.store.database import Database
from kernelcast.store.path_events import add_critical_path
from kernelcast.store.querying import Question, questions
from kernelcast.store.rank_causes import RankFinding, rank_findings
from kernelcast.store.trace_sums import summed_events

Rows = Sequence[Mapping[str, Any]]

PART_TITLES = {
    "compute_ms": "compute",
    "exposed_communication_ms": "exposed communication",
    "memory_ms": "copies and fills alone",
    "idle_host_ms": "idle: host late",
    "idle_other_stream_ms": "idle: waits for another stream",
    "idle_dependency_ms": "idle: waits for its own stream",
    "idle_unknown_ms": "idle: unknown",
}
"""Columns of `step_time` that divide the time of a device without overlap."""
PARTS = tuple(PART_TITLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReport:
    """The figures of a run: rows of the views of schema.sql, with units in the names of columns."""

    run_id: str
    hardware: str
    software: str
    steps: Rows
    ranks: Rows
    matches: Rows
    path: Rows
    passes: Rows
    kernels: Rows
    host_operators: Rows
    products: Rows
    rates: Rows
    collectives: Rows
    copies: Rows
    launches: Rows
    host: Rows
    modules: Rows
    streams: Rows
    findings: Sequence[RankFinding] = ()

    @property
    def parts_ms(self) -> dict[str, float]:
        """Mean time of a step by part, ms, over the steps of all ranks that count (docs/traces.md)."""
        steps = [step for step in self.steps if step["in_mean"]]
        return {part: sum(step[part] or 0.0 for step in steps) / len(steps) for part in PARTS}


def traced_runs(database: Database, run_id: str = "") -> list[str]:
    """Ids of runs with timelines that begin with `run_id`, oldest first; DataError without any."""
    rows = database.query(
        "SELECT run_id, min(measured_at) AS at FROM trace JOIN timeline ON timeline.trace_id = trace.id"
        " WHERE substr(run_id, 1, ?) = ? GROUP BY run_id ORDER BY at, run_id",
        [len(run_id), run_id],
    )
    if not rows:
        wanted = f"run {run_id} with a trace" if run_id else "trace with events"
        raise DataError(f"{database.path}: holds no {wanted}, expected one that `kernelcast ingest` stored")
    return [row["run_id"] for row in rows]


def report_tables() -> tuple[Question, ...]:
    """Tables of a report by the names of its fields, in the order in which they are shown."""
    return questions("trace_report.sql")


def named_steps(steps: Rows) -> Rows:
    """Rows of steps to show: why a row is in no step stands in the place of its name."""
    shown = ({**row, "step": row["step"] or row["outside"]} for row in steps)
    return [{name: value for name, value in row.items() if name != "outside"} for row in shown]


def trace_report(database: Database, run_id: str, *, top: int = 15) -> TraceReport:
    """The figures of a run; at most `top` rows of long tables."""
    [about] = database.query(
        "SELECT hardware.description AS hardware, software.description AS software FROM run"
        " JOIN hardware ON hardware.id = compute_id JOIN software ON software.id = software_id WHERE run.id = ?",
        [run_id],
    )

    with summed_events(database, run_id):
        add_critical_path(database.connection, run_id, top=top)
        tables: dict[str, Any] = {
            one.name: database.query(one.sql, {"run": run_id, "top": top}) for one in report_tables()
        }
        findings = rank_findings(database, run_id) if tables["ranks"] else ()
    return TraceReport(run_id=run_id, **about, **tables, findings=findings)
