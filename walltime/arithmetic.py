"""From the time of a step to the time of a job: start-up, checkpoints, restarts, margin, and the longest time limit."""

import math

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError
from kernelcast.walltime.durations import format_time

_S_PER_HOUR = 3_600.0
_MOST_JOBS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Time of one step in seconds: predicted, and the ends of its interval."""

    expected_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Time that a job spends outside its steps.

    `startup_s` until the first step; after every `checkpoint_every` steps one checkpoint stops the training for
    `checkpoint_s`; each of `restarts` costs `restart_s` and the steps since the last checkpoint, which are half
    of `checkpoint_every` on average and all of them at worst.

    Raises:
        UsageError: restarts without checkpoints (all would be lost each time), or a cost without an interval.
    """

    startup_s: float = 0.0
    checkpoint_every: int | None = None
    checkpoint_s: float = 0.0
    restarts: int = 0
    restart_s: float = 0.0

    def __post_init__(self) -> None:
        if self.checkpoint_every is None and self.restarts:
            raise UsageError(field="restarts", found=self.restarts, expected="checkpoint_every too")
        if self.checkpoint_every is None and self.checkpoint_s:
            raise UsageError(
                field="checkpoint_cost", found=self.checkpoint_s, expected="checkpoint_every too"
            )

    def job_s(self, steps: int, step_s: float, *, lost: float) -> float:
        """Time of a job of `steps`; `lost` is the fraction of a checkpoint's interval that each restart repeats."""
        every = self.checkpoint_every
        checkpoints = 0 if every is None else steps // every
        return (
            self.startup_s
            + steps * step_s
            + checkpoints * self.checkpoint_s
            + self.restarts * (self.restart_s + lost * (0 if every is None else min(every, steps)) * step_s)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Walltime:
    """How long a job takes, and the time limit to request.

    `expected_s`, `low_s` and `high_s` follow the step's time and interval. `needed_s` is `high_s` and the margin.
    When that is longer than one job may take, the work goes on in further jobs from the last checkpoint: `jobs` of
    `walltime_s` each; else there is one job of `needed_s`.
    """

    steps: int
    step: StepTime
    expected_s: float
    low_s: float
    high_s: float
    margin: float
    needed_s: float
    walltime_s: float
    jobs: int
    max_time_s: float | None

    @property
    def requested_s(self) -> float:
        """Time limit of all jobs together."""
        return self.jobs * self.walltime_s


def walltime(
    *, steps: int, step: StepTime, overheads: Overheads, margin: float, max_time_s: float | None = None
) -> Walltime:
    """Time of a job of `steps`; `margin` is a fraction that is added to the upper end.

    UsageError where it is longer than `max_time_s`, and there are no checkpoints from which a next job could go on, or
    not even a checkpoint's interval fits into one job.
    """
    high_s = overheads.job_s(steps, step.high_s, lost=1.0)
    needed_s = (1 + margin) * high_s
    jobs, walltime_s = 1, needed_s
    if max_time_s is not None and needed_s > max_time_s:
        jobs, walltime_s = _jobs(needed_s, step, overheads, margin, max_time_s), max_time_s
    return Walltime(
        steps=steps,
        step=step,
        expected_s=overheads.job_s(steps, step.expected_s, lost=0.5),
        low_s=overheads.job_s(steps, step.low_s, lost=0.0),
        high_s=high_s,
        margin=margin,
        needed_s=needed_s,
        walltime_s=walltime_s,
        jobs=jobs,
        max_time_s=max_time_s,
    )


def device_hours(time_s: float, devices: int) -> float:
    return time_s * devices / _S_PER_HOUR


def _jobs(needed_s: float, step: StepTime, overheads: Overheads, margin: float, max_time_s: float) -> int:
    """Number of jobs of `max_time_s`: each job after the first restarts and repeats at most a checkpoint's interval."""
    most, needed = format_time(max_time_s), format_time(needed_s)
    too_long = f"max_time is {most}, expected at least the {needed} that the job needs"
    if overheads.checkpoint_every is None:
        raise UsageError(f"{too_long}, or checkpoint_every: another job then continues", field="max_time")
    again_s = (1 + margin) * (overheads.restart_s + overheads.checkpoint_every * step.high_s)
    if max_time_s <= again_s:
        raise UsageError(
            f"{too_long}, or more than the {format_time(again_s)} between two checkpoints", field="max_time"
        )
    jobs = math.ceil((needed_s - again_s) / (max_time_s - again_s))
    if jobs > _MOST_JOBS:
        raise UsageError(f"{too_long}: {jobs} jobs would have to follow each other", field="max_time")
    return jobs
