"""Time of one update in a pipeline of stages: the paper's closed form, and an exact simulation.

See docs/timeline.md.
"""

from kernelcast.runtime.pipeline.closed_form import StepTimes, closed_forms
from kernelcast.runtime.pipeline.durations import Durations
from kernelcast.runtime.pipeline.pass_times import Span, StageTimeline, StepTimeline, step_timeline
from kernelcast.runtime.pipeline.passes import Kind, Pass
from kernelcast.runtime.pipeline.schedules import stage_orders
from kernelcast.runtime.pipeline.simulate import Simulated, simulate

__all__ = [
    "Durations",
    "Kind",
    "Pass",
    "Simulated",
    "Span",
    "StageTimeline",
    "StepTimeline",
    "StepTimes",
    "closed_forms",
    "simulate",
    "stage_orders",
    "step_timeline",
]
