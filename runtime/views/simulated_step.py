"""The simulated step behind an estimate: its passes, transfers and updates, as the pictures and the trace show them."""

from collections.abc import Iterator
from typing import NamedTuple

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.pipeline import Kind, StageTimeline, StepTimeline, step_timeline


class Transfer(NamedTuple):
    """The output of a pass on its way to the neighbouring chunk, which `to_stage` holds."""

    micro_batch: int
    chunk: int
    to_stage: int
    start_us: float
    end_us: float


def simulated_step(estimate: Estimate) -> StepTimeline:
    """Every pass of the estimate's step under its schedule.

    An estimate made with the closed form has no passes; its durations under its schedule are simulated, and the
    step may come out shorter than the estimate.

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


def step_or_reason(estimate: Estimate) -> tuple[StepTimeline | None, str]:
    """The simulated step, or None and why it is not listed."""
    try:
        return simulated_step(estimate), ""
    except UsageError as error:
        return None, str(error)


def transfers(stage: StageTimeline, timeline: StepTimeline, kind: Kind) -> Iterator[Transfer]:
    """What a stage sends after its forward or backward passes, in the order of the passes."""
    times_us = timeline.send_forward_us if kind is Kind.FORWARD else timeline.send_backward_us
    for one, sent_us in zip(stage.passes, stage.sent_us, strict=True):
        message = timeline.messages.sent(one) if one.kind is kind else None
        if message and times_us[one.chunk]:
            to_stage = timeline.messages.stage_of(message[1])
            yield Transfer(one.micro_batch, one.chunk, to_stage, sent_us, sent_us + times_us[one.chunk])


def update_parts(stage: StageTimeline, estimate: Estimate) -> tuple[tuple[str, float, float], ...]:
    """(name, start, end in µs) of the optimizer and of the all-gather of what it wrote; either may take no time."""
    start_us, end_us = stage.update.start_us, stage.update.end_us
    between_us = min(end_us, start_us + estimate.stages[stage.stage].optimizer_s * 1e6)
    return ("optimizer", start_us, between_us), ("all-gather", between_us, end_us)
