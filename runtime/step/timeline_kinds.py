"""The two ways from durations to the time of a step: the paper's closed form, or the exact simulation."""

from dataclasses import dataclass

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.pipeline.closed_form import closed_forms
from kernelcast.runtime.pipeline.durations import Times
from kernelcast.runtime.pipeline.simulate import simulate
from kernelcast.runtime.request.fields import TimelineKind as TimelineKind
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.step.step_times import StepTimes

MAX_SIMULATED_CHUNKS = 1024
MAX_SIMULATED_PASSES = 1_000_000
"""Forward passes of a step. Most schedules repeat early and take no time for more; some repeat late or never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimes:
    """Times of steps in µs, float64 [configs]: the whole, and the part until the last pass ends."""

    step_us: Times
    pipeline_us: Times


def check_simulated(parallelism: Parallelism) -> None:
    """Check that a simulation of the layout takes seconds at most.

    Raises:
        UsageError: it has too many chunks, or too many passes.
    """
    passes = parallelism.micro_batches * parallelism.chunks
    for name, found, most in (
        ("pp · virtual_stages", parallelism.chunks, MAX_SIMULATED_CHUNKS),
        ("micro_batches · pp · virtual_stages", passes, MAX_SIMULATED_PASSES),
    ):
        if found > most:
            raise UsageError(f"{name} is {found}, expected at most {most} with timeline simulate")


def pipeline_times(kind: TimelineKind, parallelism: Parallelism, step: StepTimes) -> PipelineTimes:
    """Evaluate the timeline for every configuration.

    "simulate" is exact for the layout's schedule. "closed-form" is the paper's eq. 7, made for 1F1B, whatever
    the schedule: an upper envelope where stages are equal.
    """
    if kind == "simulate":
        simulated = simulate(
            schedule=parallelism.schedule,
            pp=parallelism.pp,
            micro_batches=parallelism.micro_batches,
            virtual_stages=parallelism.virtual_stages,
            durations=step.durations,
        )
        return PipelineTimes(step_us=simulated.step_us, pipeline_us=simulated.pipeline_us)
    closed = closed_forms(
        forward_us=step.forward_us,
        backward_us=step.backward_us,
        all_reduce_us=step.durations.all_reduce_us,
        update_us=step.durations.update_us,
        micro_batches=parallelism.micro_batches,
    )
    return PipelineTimes(step_us=closed.step_us, pipeline_us=closed.pipeline_us)
