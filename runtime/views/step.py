"""The simulated step behind an estimate, pass by pass."""

from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.pipeline import StepTimeline, step_timeline


def simulated_step(estimate: Estimate) -> StepTimeline:
    """Every pass of the estimate's step under its schedule.

    An estimate made with the closed form has no passes; its durations under its schedule are simulated, and the
    step may come out shorter than the estimate says.

    Raises:
        UsageError: the step has too many passes to list them.
    """
    layout = estimate.parallelism
    return step_timeline(
        schedule=layout.schedule,
        pp=layout.pp,
        micro_batches=layout.micro_batches,
        virtual_stages=layout.virtual_stages,
        durations=estimate.durations,
    )
