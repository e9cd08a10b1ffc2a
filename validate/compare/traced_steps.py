"""What the traces of a run measured of its steps: every rank's parts, and what ran in them, by operator and pass."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any

from kernelcast.runtime.errors import DataError
from kernelcast.store import Database
from kernelcast.store.rank_causes import RankFinding, rank_findings
from kernelcast.store.runs import CUT
from kernelcast.store.trace_report import PARTS
from kernelcast.store.trace_sums import summed_events

_STEPS = """
    SELECT coalesce(rank, 0) AS rank, step, device_ms, {} FROM step_time
    WHERE run_id = ? AND step IS NOT NULL ORDER BY step_index, rank
"""
# What the host launches after the last backward pass is the update: clipping, optimizer, setting to zero.
_WORK = """
    WITH passes AS (
        SELECT trace_id, step_index, max(coalesce(launch_us, start_us)) AS last_us FROM trace_event
        WHERE run_id = :run AND direction = 'backward' GROUP BY trace_id, step_index
    ), scores AS MATERIALIZED (
        SELECT DISTINCT vector FROM trace_event WHERE run_id = :run AND operator = 'softmax'
    )
    SELECT coalesce(rank, 0) AS rank, step, class, operator, vector, variant, collective,
        -- Scales and masks of attention that is not fused.
        iif(operator = '' AND class = 'compute' AND EXISTS (
            SELECT * FROM scores WHERE instr(shapes, scores.vector)), 'attention_scores', role) AS role,
        message_bytes, iif(operator = '' AND class <> 'communication', host_operator, '') AS host_operator,
        CASE
            WHEN class = 'communication' THEN 'once'
            WHEN direction NOT IN ('', 'forward', 'once') THEN 'backward' -- recomputation too, as predicted
            WHEN coalesce(launch_us, start_us) > last_us THEN 'update'
            WHEN direction = 'forward' AND call IS NOT NULL THEN 'forward'
            ELSE ''
        END AS pass,
        sum(exposed_us) / 1e6 AS time_s, count(*) AS launches
    FROM trace_event LEFT JOIN passes USING (trace_id, step_index)
    WHERE run_id = :run AND step IS NOT NULL
    GROUP BY trace_id, step_index, class, operator, role, vector, variant, collective, message_bytes, 8, 10, 11
"""
_LOADER = """
    SELECT coalesce(rank, 0) AS rank, traced_step.name AS step, sum(total_ns) / 1e9 AS time_s
    FROM host_time JOIN timeline ON number = timeline_number JOIN trace ON trace.id = trace_id
    JOIN traced_step USING (timeline_number, step)
    WHERE run_id = ? AND kind <> 'runtime' AND host_time.name LIKE '%DataLoader%' GROUP BY 1, 2
"""
_GAPS = """
    SELECT coalesce(rank, 0) AS rank, late_us / 1e6 AS time_s, coalesce(nullif(host_operator, ''), name) AS name,
        coalesce(scope, '') AS scope
    FROM trace_event WHERE run_id = ? AND step IS NOT NULL AND late_us > 0 ORDER BY late_us DESC LIMIT 1000
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one rank ran in one step of one operator, or of a host's operator that the table lacks, in one pass.

    `time_s` counts every instant of the device once. `pass_` is forward, backward, update
    (all after the last backward pass), once (collectives), or empty where the host's side was not recorded.
    """

    rank: int
    step: str
    class_: str  # compute, communication or memory
    pass_: str
    operator: str
    role: str
    vector: tuple[int, ...]
    variant: str
    host_operator: str
    collective: str
    message_bytes: int | None
    time_s: float
    launches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A time in which a device had nothing to do because the host was late, and the call that ended it."""

    rank: int
    time_s: float
    name: str
    scope: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSteps:
    """The marked steps of a run. `parts_s`: seconds by rank, step and part (`trace_report.PARTS`
    without their unit).
    """

    run_id: str
    hardware: str
    world_size: int | None
    parts_s: Mapping[int, Mapping[str, Mapping[str, float]]]
    work: tuple[Work, ...] = field(repr=False)
    gaps: tuple[Gap, ...] = field(repr=False)
    findings: tuple[RankFinding, ...] = ()  # what the ranks wait for
    # Of the data loader, by rank and step.
    loader_s: Mapping[tuple[int, str], float] = field(default_factory=dict)

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.parts_s))

    @property
    def steps(self) -> tuple[str, ...]:
        """Names of the steps that all ranks have, in their order; without those that are cut, if there are others."""
        first, *others = (self.parts_s[rank] for rank in self.ranks)
        found = tuple(step for step in first if all(step in other for other in others))
        return tuple(step for step in found if not step.endswith(CUT)) or found

    def step_s(self, step: str) -> float:
        return max(sum(self.parts_s[rank][step].values()) for rank in self.ranks)

    @property
    def typical(self) -> str:
        """The step with the median time (of two the shorter), without the first, whose start was not recorded."""
        times = {step: self.step_s(step) for step in self.steps[min(len(self.steps) - 1, 1) :]}
        middle = median_low(times.values())
        return next(step for step, time_s in times.items() if time_s == middle)


def traced_steps(database: Database, run_id: str) -> TracedSteps:
    """Read the steps of a run that `traced_runs` names; DataError if no step is marked on all ranks."""
    parts_s: dict[int, dict[str, dict[str, float]]] = defaultdict(dict)
    for row in database.query(_STEPS.format(", ".join(PARTS)), [run_id]):
        parts_s[row["rank"]][row["step"]] = {
            part.removesuffix("_ms"): (row[part] or 0.0) / 1e3 for part in PARTS
        }
    [about] = database.query(
        "SELECT hardware.description AS hardware, max(trace.world_size) AS world_size FROM run"
        " JOIN hardware ON hardware.id = compute_id JOIN trace ON trace.run_id = run.id WHERE run.id = ?",
        [run_id],
    )
    with summed_events(database, run_id):
        findings = rank_findings(database, run_id)
    found = TracedSteps(
        run_id=run_id,
        hardware=about["hardware"],
        world_size=about["world_size"],
        parts_s=parts_s,
        work=tuple(_work(row) for row in database.query(_WORK, {"run": run_id})),
        gaps=tuple(Gap(**row) for row in database.query(_GAPS, [run_id])),
        findings=findings,
        loader_s={(row["rank"], row["step"]): row["time_s"] for row in database.query(_LOADER, [run_id])},
    )
    if not parts_s or not found.steps:
        raise DataError(
            f"run {run_id[:12]}: its traces mark no step on all ranks, expected ProfilerStep# (profiler.step() after "
            "every step) or annotations such as 'step 12'"
        )
    return found


def _work(row: Mapping[str, Any]) -> Work:
    values = dict(row)
    vector: Sequence[int] = json.loads(values.pop("vector") or "[]")
    return Work(class_=values.pop("class"), pass_=values.pop("pass"), vector=tuple(vector), **values)
