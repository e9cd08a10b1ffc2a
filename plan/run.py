"""A training run between failures, and its expected time in closed form.

Work is cut into intervals that end in a checkpoint. A failure loses the work since the last written checkpoint,
takes `detection_s` until it is noticed, and then a restart, which can fail too. Failures are a Poisson process of
`failures_per_s` while processes run. With A = interval + stall and R = restart + write in the background, the time
of an interval is (1/λ + detection) · exp(λR) · (exp(λA) − 1), which is exact; without detection and background it is
the complete model of Daly (2006, doi 10.1016/j.future.2004.11.016, eq. 13).
"""

import math
from collections.abc import Mapping
from types import MappingProxyType

from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.views.formatting import seconds

CAUSES = (
    "detection", "restart", "recomputation", "checkpoint", "evaluation", "maintenance", "queue",
)  # fmt: skip
"""What takes time in addition to steps: keys of `Expected.lost_s`."""
_MOST_FAILURES_PER_INTERVAL = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of `steps`, all times in seconds.

    Every `interval_steps` training stops for `stall_s` and the checkpoint is complete `write_s` after that, during
    training. `start_s` passes before the first step. `evaluation_share` of the time of steps is added to it.
    `failures_per_s` is the rate of the whole run; intervals between failures are Weibull with `shape` (1: exponential),
    of the same mean. A failure that finds no spare node, of probability `short_probability`, waits for `short_s` on
    average. Every `maintenance_every_s` the run stops for `maintenance_s` and a restart, after a checkpoint. With a
    `walltime_limit_s` it is cut into jobs; each waits for `queue_s` on average, starts, and ends in a checkpoint.
    """

    steps: int
    step_s: float
    interval_steps: int
    stall_s: float = 0.0
    write_s: float = 0.0
    start_s: float = 0.0
    evaluation_share: float = 0.0
    failures_per_s: float = 0.0
    shape: float = 1.0
    detection_s: float = 0.0
    restart_s: float = 0.0
    short_probability: float = 0.0
    short_s: float = 0.0
    maintenance_every_s: float = math.inf
    maintenance_s: float = 0.0
    walltime_limit_s: float = math.inf
    queue_s: float = 0.0

    @property
    def work_s(self) -> float:
        """Steps without anything else."""
        return self.steps * self.step_s

    @property
    def wait_s(self) -> float:
        """Mean time from a failure to the begin of a restart."""
        return self.detection_s + self.short_probability * self.short_s

    @property
    def interval_s(self) -> float:
        """Time from one checkpoint's stall to the next, the latter included."""
        return self.interval_steps * self.step_s * (1 + self.evaluation_share) + self.stall_s

    @property
    def job_overhead_s(self) -> float:
        """What a job of limited walltime spends on its start and its last checkpoint."""
        return self.start_s + self.stall_s + self.write_s

    def check(self) -> None:
        """Check that the run gets anywhere. UsageError where failures come faster than it restarts, storage is slower
        than the interval, or a job is too short for its start and a checkpoint; says what to change.
        """
        every_s = self.interval_steps * self.step_s * (1 + self.evaluation_share)
        if self.write_s > every_s * (1 + 1e-9):
            raise UsageError(
                f"a checkpoint takes {seconds(self.write_s)} to write and the next is due after {seconds(every_s)}, "
                "expected storage that is faster, or a longer checkpoint_every"
            )
        if self.walltime_limit_s <= self.job_overhead_s:
            raise UsageError(
                f"walltime_limit is {seconds(self.walltime_limit_s)}, expected more than start-up and one checkpoint, "
                f"{seconds(self.job_overhead_s)}"
            )
        if self.maintenance_every_s <= self.maintenance_s + self.restart_s:
            raise UsageError(
                f"maintenance_every is {seconds(self.maintenance_every_s)}, expected more than the maintenance and a "
                f"restart, {seconds(self.maintenance_s + self.restart_s)}"
            )
        rate = self.failures_per_s
        per_interval = rate * (self.restart_s + self.write_s + self.interval_s)
        if rate and (rate * self.restart_s >= 1 or per_interval > _MOST_FAILURES_PER_INTERVAL):
            raise UsageError(
                f"no progress is made: failures are {seconds(1 / rate)} apart, a restart takes "
                f"{seconds(self.restart_s)} and an interval between checkpoints {seconds(self.interval_s)}, expected "
                "fewer devices, a faster restart or a shorter interval"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Mean time of a run, and what it is made of, in seconds: `work_s` and `lost_s` by cause add up to `total_s`."""

    total_s: float
    work_s: float
    failures: float
    lost_s: Mapping[str, float]

    @property
    def goodput(self) -> float:
        """Share of the time in which steps are made that count."""
        return self.work_s / self.total_s


def expected(run: Run) -> Expected:
    """The closed form: exact for exponential failures without a walltime limit; jobs are counted as a fraction, and
    every interval ends in a checkpoint. UsageError where the run makes no progress (`Run.check`).
    """
    run.check()
    rate = run.failures_per_s
    whole, rest = divmod(run.steps, run.interval_steps)
    rest_s = rest * run.step_s * (1 + run.evaluation_share) + run.stall_s if rest else 0.0
    first_s = run.interval_s if whole else rest_s
    failures, up_s = 0.0, run.start_s + run.write_s + whole * run.interval_s + rest_s
    if rate:
        after_failure = math.exp(rate * (run.restart_s + run.write_s))
        # The first interval begins with the start, and no checkpoint is written under it.
        failures = -math.expm1(-rate * (run.start_s + first_s + run.write_s)) * math.exp(rate * first_s)
        failures += max(0, whole - 1) * math.expm1(rate * run.interval_s)
        failures += math.expm1(rate * rest_s) if whole else 0.0
        failures *= after_failure
        up_s = failures / rate
    restart_s = _until_failure(run.start_s, rate) + failures * _until_failure(run.restart_s, rate)
    checkpoint_s = (whole + bool(rest)) * run.stall_s + run.write_s
    evaluation_s = run.work_s * run.evaluation_share
    lost_s = {
        "detection": failures * run.wait_s,
        "restart": restart_s,
        "recomputation": max(0.0, up_s - run.work_s - evaluation_s - checkpoint_s - restart_s),
        "checkpoint": checkpoint_s,
        "evaluation": evaluation_s,
        "maintenance": 0.0,
        "queue": 0.0,
    }
    inner_s = up_s + failures * run.wait_s
    jobs, stops = jobs_of(run, inner_s), maintenances_of(run, inner_s)
    lost_s["restart"] += (jobs - 1) * run.start_s + stops * run.restart_s
    lost_s["checkpoint"] += (jobs - 1) * (run.stall_s + run.write_s)
    lost_s["maintenance"] = stops * run.maintenance_s
    lost_s["queue"] = jobs * run.queue_s
    return Expected(
        total_s=run.work_s + sum(lost_s.values()),
        work_s=run.work_s,
        failures=failures,
        lost_s=MappingProxyType(lost_s),
    )


def _until_failure(time_s: float, rate: float) -> float:
    """Mean of a time that a failure cuts short."""
    return -math.expm1(-rate * time_s) / rate if rate else time_s


def jobs_of(run: Run, inner_s: float) -> float:
    """Jobs that a run of `inner_s` with one start is cut into."""
    if math.isinf(run.walltime_limit_s):
        return 1.0
    return max(1.0, (inner_s - run.start_s) / (run.walltime_limit_s - run.job_overhead_s))


def maintenances_of(run: Run, inner_s: float) -> float:
    """Times that a run of `inner_s` is stopped for maintenance."""
    if math.isinf(run.maintenance_every_s):
        return 0.0
    return inner_s / (run.maintenance_every_s - run.maintenance_s - run.restart_s)


def daly_interval_s(*, stall_s: float, mean_s: float) -> float:
    """Daly's higher-order optimum of the work between checkpoints (2006, eq. 37); `mean_s` between failures.

    >>> round(daly_interval_s(stall_s=60, mean_s=3 * 3600))
    1099
    """
    if stall_s >= 2 * mean_s:
        return mean_s
    ratio = stall_s / (2 * mean_s)
    return math.sqrt(2 * stall_s * mean_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall_s


def with_best_interval(run: Run) -> Run:
    """The run with the interval of the shortest expected time, in whole steps: availability (arXiv 2410.18124) is what
    `expected` gives, searched around Daly's optimum. A checkpoint is written before the next begins.
    """
    per_step_s = run.step_s * (1 + run.evaluation_share)
    least = max(1, math.ceil(run.write_s / per_step_s * (1 - 1e-12)))
    most = max(least, run.steps)
    if not run.failures_per_s:
        return replace(run, interval_steps=most)
    start = daly_interval_s(stall_s=max(run.stall_s, 1e-9), mean_s=1 / run.failures_per_s) / per_step_s

    def cost(steps: int) -> float:
        """Failures per step of work, which the expected time is proportional to."""
        return math.expm1(min(700.0, run.failures_per_s * (steps * per_step_s + run.stall_s))) / steps

    low, high = least, min(most, max(least, 4 * math.ceil(start) + 4))
    while high - low > 2:  # the cost has one minimum
        third = (high - low) // 3
        left, right = low + third, high - third
        low, high = (low, right) if cost(left) <= cost(right) else (left, high)
    return replace(run, interval_steps=min(range(low, high + 1), key=cost))
