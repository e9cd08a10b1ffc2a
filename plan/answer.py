"""A plan: the run on the calendar, with its JSON form."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from kernelcast.plan.checkpoint import Checkpoint
from kernelcast.plan.failures import FailureRate
from kernelcast.plan.run import Expected, Run, daly_interval_s, expected, with_best_interval
from kernelcast.plan.simulation import Draws, Simulated, quantiles, simulate
from kernelcast.runtime.dataclass import asdict, dataclass, field, replace
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.estimate.step_spread import StepSpread
from kernelcast.runtime.json_text import plain_values

PLAN_FORMAT = "kernelcast.run-plan/1"
LEVELS = (0.5, 0.9, 0.95)
_FAN_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
_FAN_RUNS, _FAN_POINTS = 400, 12
_S_PER_DAY, _S_PER_HOUR, _HOURS_PER_MONTH = 86_400.0, 3_600.0, 730.0
_J_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """What passes from a failure to the next step, in seconds; recomputation is not part of it."""

    detection_s: float
    replacement_s: float
    startup_s: float
    loading_s: float
    first_steps_s: float

    @property
    def total_s(self) -> float:
        """All but the detection."""
        return self.replacement_s + self.startup_s + self.loading_s + self.first_steps_s


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run of the `estimate`'s steps on `nodes` and `spares`. `elastic_ratio` is the throughput with one replica
    fewer, None where a failure waits for a node instead; `most_power_w` a device's power limit, None if unknown.
    """

    estimate: Estimate = field(repr=False)
    run: Run
    rate: FailureRate
    spread: StepSpread
    checkpoint: Checkpoint
    restart: Restart
    draws: Draws = field(repr=False)
    seed: int
    nodes: int
    gpus_per_node: int
    spares: int
    elastic_ratio: float | None
    is_best_interval: bool
    price: float | None
    node_month_price: float | None
    most_power_w: float | None

    @cached_property
    def expected(self) -> Expected:
        """The closed form, at the mean rate."""
        return expected(self.run)

    @cached_property
    def simulated(self) -> Simulated:
        """Simulated runs with uncertain rate, step and restart."""
        return simulate(self.run, runs=len(self.draws.step), seed=self.seed, draws=self.draws)

    @property
    def days(self) -> tuple[float, ...]:
        """Calendar days at `LEVELS`."""
        return quantiles(self.simulated.total_s / _S_PER_DAY, LEVELS)

    @property
    def goodput_interval(self) -> tuple[float, float]:
        """5th and 95th percentile of the share of the time in which steps count."""
        low, high = quantiles(self.simulated.goodput, (0.05, 0.95))
        return low, high

    @property
    def tokens(self) -> int:
        """Tokens of all steps, padding counted."""
        layout = self.estimate.parallelism
        return self.run.steps * layout.samples_per_update * layout.sample_length(self.estimate.model)

    @property
    def gpus(self) -> int:
        """Devices that are paid for, spare nodes included."""
        return self.estimate.parallelism.world_size + self.spares * self.gpus_per_node

    @property
    def held_hours(self) -> float:
        """Mean hours for which nodes are held: queues are not paid for."""
        return (self.expected.total_s - self.expected.lost_s["queue"]) / _S_PER_HOUR

    @property
    def gpu_hours(self) -> float:
        """Mean GPU-hours, spare nodes included."""
        return self.held_hours * self.gpus

    @property
    def cost(self) -> float | None:
        """Mean cost, in the unit of the price; None without one."""
        if self.price is not None:
            return self.gpu_hours * self.price
        if self.node_month_price is None:
            return None
        return self.held_hours / _HOURS_PER_MONTH * (self.nodes + self.spares) * self.node_month_price

    @property
    def energy_kwh(self) -> tuple[float, bool] | None:
        """Mean energy of the devices (idle while not training), and whether it is only a bound by their power limit."""
        of_step = self.estimate.energy
        if of_step is not None:
            trained_s = self.expected.work_s + self.expected.lost_s["recomputation"]
            devices = self.estimate.parallelism.world_size
            idle_s = self.held_hours * _S_PER_HOUR * self.gpus - trained_s * devices
            joules = trained_s * devices * of_step.mean_power_w + idle_s * of_step.law.idle_w
            return joules / _J_PER_KWH, False
        return None if self.most_power_w is None else (self.gpu_hours * self.most_power_w / 1000, True)

    @property
    def daly_steps(self) -> float | None:
        """Daly's optimum of the interval in steps; None without failures."""
        if not self.run.failures_per_s:
            return None
        per_step_s = self.run.step_s * (1 + self.run.evaluation_share)
        return daly_interval_s(stall_s=self.run.stall_s, mean_s=1 / self.run.failures_per_s) / per_step_s

    @cached_property
    def helps(self) -> Mapping[str, float]:
        """Days that halving each cause saves, most first; the interval is chosen again unless it was given."""
        run = self.run
        halved: dict[str, dict[str, float]] = {
            "failures": {"failures_per_s": run.failures_per_s / 2},
            "detection": {"detection_s": run.detection_s / 2},
            "restart": {"restart_s": run.restart_s / 2, "start_s": run.start_s / 2},
            "checkpoint stall": {"stall_s": run.stall_s / 2},
            "waiting for nodes": {"short_s": run.short_s / 2},
            "evaluation": {"evaluation_share": run.evaluation_share / 2},
            "maintenance": {"maintenance_s": run.maintenance_s / 2},
            "queue": {"queue_s": run.queue_s / 2},
        }
        saved = {}
        for name, values in halved.items():
            other = replace(run, **values)  # type: ignore[arg-type]  # all of them are floats
            other = with_best_interval(other) if self.is_best_interval else other
            saved[name] = (self.expected.total_s - expected(other).total_s) / _S_PER_DAY
        return dict(sorted(saved.items(), key=lambda pair: -pair[1]))

    @cached_property
    def intervals(self) -> tuple[tuple[int, float], ...]:
        """Steps between checkpoints around the one of the plan, and the days that each takes (closed form)."""
        found: list[tuple[int, float]] = []
        best = self.run.interval_steps
        least = max(1, int(np.ceil(self.run.write_s / (self.run.step_s * (1 + self.run.evaluation_share)))))
        for factor in np.geomspace(1 / 16, 16, 33):
            steps = min(self.run.steps, max(least, round(best * float(factor))))
            if not found or steps > found[-1][0]:
                days = expected(replace(self.run, interval_steps=steps)).total_s / _S_PER_DAY
                found.append((steps, days))
        return tuple(found)

    @cached_property
    def fan(self) -> tuple[tuple[float, ...], ...]:
        """Shares of the run from 0 to 1, each with the days until it at 5, 25, 50, 75 and 95 %."""
        few = Draws(
            failures=self.draws.failures[:_FAN_RUNS],
            step=self.draws.step[:_FAN_RUNS],
            restart=self.draws.restart[:_FAN_RUNS],
            detection=self.draws.detection[:_FAN_RUNS],
        )
        points: list[tuple[float, ...]] = [(0.0,) * (1 + len(_FAN_LEVELS))]
        for share in np.linspace(0, 1, _FAN_POINTS + 1)[1:]:
            found = simulate(self.run, runs=len(few.step), seed=self.seed, draws=few, share=float(share))
            points.append((float(share), *quantiles(found.total_s / _S_PER_DAY, _FAN_LEVELS)))
        return tuple(points)

    def to_dict(self, *, with_fan: bool = False) -> dict[str, Any]:
        """Plain values for JSON, form `kernelcast.run-plan/1` (docs/json.md); `with_fan` adds tokens over days."""
        found, run = self.expected, self.run
        values = {
            "format": PLAN_FORMAT,
            "days": {
                "mean": found.total_s / _S_PER_DAY,
                "productive": found.work_s / _S_PER_DAY,
                **{f"p{round(100 * level)}": one for level, one in zip(LEVELS, self.days, strict=True)},
            },
            **plain_values(self, "expected.goodput", "goodput_interval"),
            "lost_days": {name: lost_s / _S_PER_DAY for name, lost_s in found.lost_s.items()},
            **plain_values(self, interruptions="expected.failures", helps_days="helps"),
            **plain_values(self, "gpu_hours", "cost"),
            **dict(zip(("energy_kwh", "energy_is_limit"), self.energy_kwh or (None, None), strict=True)),
            **plain_values(self, "run.steps", "tokens"),
            "step": {
                "p50_s": self.estimate.step_time_s,
                "p90_s": self.estimate.step_time_s * self.spread.p90,
                "p99_s": self.estimate.step_time_s * self.spread.p99,
                **plain_values(self, mean_s="run.step_s", interval_s="estimate.interval_s"),
            },
            "failures": {
                **self.rate.to_dict(),
                "mean_hours": 1 / run.failures_per_s / _S_PER_HOUR if run.failures_per_s else None,
            },
            "checkpoint": {
                **asdict(self.checkpoint),
                "every_steps": run.interval_steps,
                "every_s": run.interval_steps * run.step_s,
                **plain_values(self, "daly_steps", is_best="is_best_interval"),
            },
            "restart": {**asdict(self.restart), "total_s": self.restart.total_s},
            **plain_values(self, "nodes", "spares", gpus="estimate.parallelism.world_size"),
            "elastic_ratio": self.elastic_ratio,
            "simulations": len(self.draws.step),
            "seed": self.seed,
            **plain_values(self, layout="estimate.parallelism.degrees", model="estimate.model.name"),
            **plain_values(self, "intervals", "warnings"),
        }
        if with_fan:
            values["fan"] = [list(one) for one in self.fan]
        return values

    @property
    def warnings(self) -> tuple[str, ...]:
        """Lines about what makes the plan doubtful."""
        lines = []
        low, high = self.rate.interval() if np.isfinite(self.rate.events) else (1.0, 1.0)
        if low and high / low > 4:
            lines.append(
                f"failure rates of sites differ: {low:.2g} to {high:.2g} per 1,000 node-days (90 %); "
                "your own job logs narrow the range (kernelcast plan fit-failures)"
            )
        if self.estimate.memory.fits is False:
            lines.append("the layout does not fit into memory")
        if self.run.interval_steps >= self.run.steps and self.run.failures_per_s:
            lines.append("the run ends before its first checkpoint is due")
        return tuple(lines)
