"""Figures of a traced run: time of steps by part, top kernels and operators, rates, ranks, streams.

Two runs are compared per step and rank: slower, faster, new and removed kernels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelcast.runtime.errors import DataError
from kernelcast.store.database import Database
from kernelcast.store.querying import Question, questions
from kernelcast.store.rank_causes import RankFinding, rank_findings
from kernelcast.store.trace_sums import summed_events

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReport:
    """The figures of a run: rows of the views of schema.sql, with units in the names of columns."""

    run_id: str
    hardware: str
    software: str
    steps: Rows
    ranks: Rows
    matches: Rows
    kernels: Rows
    host_operators: Rows
    products: Rows
    collectives: Rows
    copies: Rows
    launches: Rows
    host: Rows
    modules: Rows
    streams: Rows
    findings: Sequence[RankFinding] = ()

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


def report_tables() -> tuple[Question, ...]:
    """Tables of a report by the names of its fields, in the order in which they are shown."""
    return questions("trace_report.sql")


def trace_report(database: Database, run_id: str, *, top: int = 15) -> TraceReport:
    """The figures of a run; at most `top` rows of long tables."""
    [about] = database.query(
        "SELECT hardware.description AS hardware, software.description AS software FROM run"
        " JOIN hardware ON hardware.id = compute_id JOIN software ON software.id = software_id WHERE run.id = ?",
        [run_id],
    )

    with summed_events(database, run_id):
        tables: dict[str, Any] = {
            one.name: database.query(one.sql, {"run": run_id, "top": top}) for one in report_tables()
        }
        findings = rank_findings(database, run_id) if tables["ranks"] else ()
    return TraceReport(run_id=run_id, **about, **tables, findings=findings)


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
