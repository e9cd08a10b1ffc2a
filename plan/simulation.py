"""The same run simulated failure by failure, many times at once: quantiles, and a check of the closed form.

All runs advance together, by blocks of failures. Parameters may differ from run to run (arrays of shape [runs]): that
is how uncertain rates and step times become quantiles.
"""

import math

import numpy as np
from numpy.typing import NDArray

from kernelcast.plan.run import Run, jobs_of, maintenances_of
from kernelcast.runtime.dataclass import dataclass

Floats = NDArray[np.float64]
_MOST_FAILURES = 200_000
"""Failures after which runs that make no progress are given up (their time is infinite)."""
_AT_ONCE = 1 << 16
"""Numbers in an array at once, which caches hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Factors of a run's rate, step, restart and detection, [runs] each; 1 where they are certain."""

    failures: Floats
    step: Floats
    restart: Floats
    detection: Floats

    @classmethod
    def certain(cls, runs: int) -> "Draws":
        """All as stated."""
        one = np.ones(runs)
        return cls(failures=one, step=one, restart=one, detection=one)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Times in seconds and failures of every simulated run, float64 [runs]."""

    total_s: Floats
    work_s: Floats
    failures: Floats

    @property
    def goodput(self) -> Floats:
        """Share of the time in which steps are made that count."""
        return self.work_s / self.total_s


def simulate(
    run: Run, *, runs: int, seed: int = 0, draws: Draws | None = None, share: float = 1.0
) -> Simulated:
    """Simulate `run`, or its first `share`, `runs` times; UsageError where the run makes no progress (`Run.check`)."""
    run.check()
    drawn = draws or Draws.certain(runs)
    random = np.random.default_rng(seed)
    steps = max(1, round(run.steps * share))
    whole, rest = divmod(steps, run.interval_steps)
    step_s = run.step_s * (1 + run.evaluation_share) * drawn.step
    interval_s = run.interval_steps * step_s + run.stall_s
    rest_s = rest * step_s + run.stall_s if rest else np.zeros(runs)
    restart_s, detection_s = run.restart_s * drawn.restart, run.detection_s * drawn.detection
    rate = run.failures_per_s * drawn.failures
    total_s, failures = np.zeros(runs), np.zeros(runs)
    if run.failures_per_s:
        gap_s = 1 / rate / math.gamma(1 + 1 / run.shape)
        _advance(random, run, whole, (interval_s, rest_s, restart_s, detection_s, gap_s), total_s, failures)
    else:
        total_s += run.start_s + whole * interval_s + rest_s + run.write_s
    # Jobs and maintenances cut the run as in the closed form, here in whole numbers.
    jobs = (
        np.ceil([jobs_of(run, one) - 1e-9 for one in total_s])
        if run.walltime_limit_s < math.inf
        else np.ones(runs)
    )
    stops = (
        np.floor([maintenances_of(run, one) for one in total_s])
        if run.maintenance_every_s < math.inf
        else np.zeros(runs)
    )
    total_s += (jobs - 1) * run.job_overhead_s + stops * (run.maintenance_s + run.restart_s)
    if run.queue_s:
        total_s += run.queue_s * random.gamma(jobs)  # the sum of `jobs` exponential waits
    return Simulated(total_s=total_s, work_s=steps * run.step_s * drawn.step, failures=failures)


def _advance(
    random: np.random.Generator,
    run: Run,
    whole: int,
    times: tuple[Floats, Floats, Floats, Floats, Floats],
    total_s: Floats,
    failures: Floats,
) -> None:
    """Simulate all runs to the end, in blocks of failures [runs, block]; adds to `total_s` and `failures`."""
    block = int(min(max(8, 0.3 * run.failures_per_s * run.steps * run.step_s), 512))
    done = np.zeros(len(total_s))  # intervals whose checkpoint is written
    for here in np.array_split(np.arange(len(total_s)), max(1, len(total_s) * block // _AT_ONCE)):
        passed = 0
        while len(here) and passed < _MOST_FAILURES:
            interval_s, rest_s, restart_s, detection_s, gap_s = (one[here, None] for one in times)
            draws = random.standard_exponential((len(here), block))
            up_s = gap_s * (draws if run.shape == 1 else draws ** (1 / run.shape))
            starts = np.broadcast_to(restart_s, up_s.shape).copy()
            if passed == 0:
                starts[:, 0] = run.start_s
            written = np.maximum(np.floor((up_s - starts - run.write_s) / interval_s), 0.0)
            before = done[here, None] + np.cumsum(written, axis=1) - written
            left_s = starts + (whole - before) * interval_s + rest_s + run.write_s
            ends = up_s >= left_s
            first = ends.argmax(axis=1)
            rows = np.arange(len(here))
            ended = ends[rows, first]
            lasted_s = up_s + detection_s
            if run.short_probability:
                waits = random.standard_exponential(up_s.shape) * run.short_s
                lasted_s += np.where(random.random(up_s.shape) < run.short_probability, waits, 0.0)
            clock_s = np.cumsum(lasted_s, axis=1)
            until_s = (clock_s - lasted_s + left_s)[rows, first]
            total_s[here] += np.where(ended, until_s, clock_s[:, -1])
            failures[here] += np.where(ended, first, block)
            done[here] += written.sum(axis=1)
            here, passed = here[~ended], passed + block
        total_s[here] = math.inf


def quantiles(values: Floats, levels: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(float(one) for one in np.quantile(values, levels, method="inverted_cdf"))
