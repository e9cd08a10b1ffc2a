"""The simulated step of an estimate as spans of time per stage, for the drawing and for the trace."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.pipeline.pass_times import StageTimeline, StepTimeline, step_timeline
from kernelcast.runtime.pipeline.schedules import Kind
from kernelcast.runtime.step.op import Component
from kernelcast.runtime.views.step_breakdown import NAMES, style_of

_COMPONENTS = {Component.LAYER_FORWARD: Kind.FORWARD, Component.LAYER_BACKWARD: Kind.BACKWARD}


class Span(NamedTuple):
    """Something that a stage does from `start_us` to `end_us`. `style`: the kind of a pass, with micro-batch and chunk;
    "expert" or "context" inside the pass before; "reduce", "optimizer", "gather".
    """

    style: str
    name: str
    start_us: float
    end_us: float
    micro_batch: int | None = None
    chunk: int | None = None


class Transfer(NamedTuple):
    """The output of a pass on its way to the neighbouring chunk, which `to_stage` holds."""

    micro_batch: int
    chunk: int
    to_stage: int
    start_us: float
    end_us: float


@dataclass(frozen=True, slots=True)
class PassCollectives:
    """Exposed expert and context-parallel µs in a pass, by stage, kind and style: means over the stage's chunks."""

    times_us: Mapping[tuple[int, Kind, str], float]

    @classmethod
    def of(cls, estimate: Estimate) -> "PassCollectives":
        found: defaultdict[tuple[int, Kind, str], float] = defaultdict(float)
        chunks = estimate.parallelism.virtual_stages  # of one copy of the model
        for row in estimate.operators:
            style = style_of(row.role)
            if row.component in _COMPONENTS and OPERATORS[row.operator].is_collective and style != "tensor":
                found[row.stage, _COMPONENTS[row.component], style] += row.total_s * 1e6 / chunks
        return cls(found)

    @property
    def styles(self) -> tuple[str, ...]:
        """The styles that some pass has."""
        found = {style for (_, _, style), time_us in self.times_us.items() if time_us}
        return tuple(style for style in NAMES if style in found)

    def spans(self, stage: int, kind: Kind, start_us: float, end_us: float) -> Iterator[Span]:
        """The collectives of a pass, drawn one after the other from its start: only their sum is known."""
        for style in self.styles:
            time_us = min(self.times_us.get((stage, kind, style), 0.0), end_us - start_us)
            if time_us > 0:
                yield Span(style, NAMES[style], start_us, start_us + time_us)
                start_us += time_us


def simulated_step(estimate: Estimate) -> StepTimeline:
    """Every pass of the step under its schedule; the closed form's durations are simulated, and may come out shorter
    than its estimate. UsageError where the step has too many passes to list them.
    """
    shape = values_of(estimate.parallelism, "schedule", "pp", "micro_batches", "virtual_stages")
    return step_timeline(**shape, durations=estimate.durations)


def step_or_reason(estimate: Estimate) -> tuple[StepTimeline | None, str]:
    """The simulated step, or None and why it is not listed."""
    try:
        return simulated_step(estimate), ""
    except UsageError as error:
        return None, str(error)


def stage_spans(stage: StageTimeline, estimate: Estimate, collectives: PassCollectives) -> Iterator[Span]:
    """Passes in their order, each followed by the collectives inside it; then gradients and update."""
    for one, start_us, end_us in zip(stage.passes, stage.starts_us, stage.ends_us, strict=True):
        yield Span(one.kind.value, one.kind.value, start_us, end_us, one.micro_batch, one.chunk)
        yield from collectives.spans(stage.stage, one.kind, start_us, end_us)
    for reduce in stage.all_reduces:
        yield Span("reduce", "all-reduce", reduce.start_us, reduce.end_us)
    start_us, end_us = stage.update.start_us, stage.update.end_us
    between_us = min(end_us, start_us + estimate.stages[stage.stage].computed_s * 1e6)
    yield Span("optimizer", "optimizer", start_us, between_us)
    yield Span("gather", "all-gather", between_us, end_us)


def transfers(stage: StageTimeline, timeline: StepTimeline, kind: Kind) -> Iterator[Transfer]:
    """The transfers after a stage's forward or backward passes, in the order of the passes."""
    times_us = timeline.send_forward_us if kind is Kind.FORWARD else timeline.send_backward_us
    for one, sent_us in zip(stage.passes, stage.sent_us, strict=True):
        message = timeline.messages.sent(one) if one.kind is kind else None
        if message and times_us[one.chunk]:
            to_stage = timeline.messages.stage_of(message[1])
            yield Transfer(one.micro_batch, one.chunk, to_stage, sent_us, sent_us + times_us[one.chunk])
