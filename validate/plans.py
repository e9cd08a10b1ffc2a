"""Published runs compared with their plans; a run's own failures are left out of the rate that predicts it."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from kernelcast.plan import Plan, plan_of, read_plan
from kernelcast.plan.failures import published_sites
from kernelcast.plan.fields import PLAN
from kernelcast.plan.simulation import quantiles
from kernelcast.runtime import Estimator, predict
from kernelcast.runtime.dataclass import dataclass, field, replace
from kernelcast.runtime.json_text import plain_values, values_of
from kernelcast.runtime.record import WITH_DEFAULT, Record, above, between, read_record

PUBLISHED_RUNS = Path(__file__).resolve().parent.parent / "plan" / "published_runs.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun(Record):
    """A row of published_runs.toml. `rounding`: half a unit of the last published digit, over the figure."""

    OPTIONAL = WITH_DEFAULT
    hardware: str
    model: str
    ask: dict[str, Any] = field(default_factory=dict)
    step_s: Annotated[float | None, above(0)] = None
    without: tuple[str, ...] = ()
    goodput: Annotated[float | None, between(0, 1)] = None
    gpu_hours: Annotated[float | None, above(0)] = None
    rounding: Annotated[float, between(0, 1)] = 0.0
    at_least: bool = False
    vague: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """What was reported, and the mean and 90 % interval of the plan; goodput in shares, or GPU-hours."""

    name: str
    run: PublishedRun
    plan: Plan
    reported: float
    predicted: float
    interval: tuple[float, float]

    @property
    def is_within(self) -> bool:
        """Whether the report, as exact as it was published, meets the interval; a bound lies below its end."""
        low, high = self.interval
        reaches = self.reported * (1 - self.run.rounding) <= high
        return reaches and (self.run.at_least or low <= self.reported * (1 + self.run.rounding))

    @property
    def error(self) -> float:
        """Points of goodput as a share, or predicted / reported − 1 of GPU-hours; 0 above a bound."""
        if self.run.goodput is None:
            return self.predicted / self.reported - 1
        error = self.predicted - self.reported
        return min(0.0, error) if self.run.at_least else error

    @property
    def lost_per_failure_h(self) -> tuple[float, float] | None:
        """Hours lost per failure: as reported, with the failures and node-days of the run's own site, and as planned.
        None where these are not published. All loss counts, whatever its cause; for a bound it is the maximum.
        """
        if self.run.goodput is None or not self.run.without:
            return None
        site, found = published_sites()[self.run.without[0]], self.plan.expected
        days = site.node_days / self.plan.nodes
        planned_s = (found.total_s - found.work_s) / found.failures
        return 24 * days * (1 - self.run.goodput) / site.failures, planned_s / 3600

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "quantity": "gpu_hours" if self.run.goodput is None else "goodput",
            "reported": self.reported,
            "at_least": self.run.at_least,
            **plain_values(self, "predicted", "interval"),
            "within": self.is_within,
            "error": self.error,
            **plain_values(self.plan, "days"),
            "lost_per_failure_h": None if (lost := self.lost_per_failure_h) is None else list(lost),
            "step_is_published": self.run.step_s is not None,
            "left_out": list(self.run.without),
            **values_of(self.run, "vague", "source"),
        }


def planned_runs() -> Iterator[PlannedRun]:
    for name, row in tomllib.loads(PUBLISHED_RUNS.read_text(encoding="utf-8")).items():
        run = read_record(PublishedRun, row)
        estimator = Estimator.load(run.hardware)
        own = read_plan({key: value for key, value in run.ask.items() if key in PLAN})
        asked = {key: value for key, value in run.ask.items() if key not in PLAN}
        estimate = predict(estimator, run.model, **asked)
        if run.step_s is not None:
            estimate = replace(estimate, step_time_s=run.step_s, interval_s=None)
        found = plan_of(estimator, estimate, own, without=run.without)
        hours = found.simulated.total_s / 3600 * found.gpus
        is_goodput = run.goodput is not None
        low, high = found.goodput_interval if is_goodput else quantiles(hours, (0.05, 0.95))
        yield PlannedRun(
            name=name,
            run=run,
            plan=found,
            reported=run.goodput or run.gpu_hours or 0.0,
            predicted=found.expected.goodput if is_goodput else found.gpu_hours,
            interval=(low, high),
        )
