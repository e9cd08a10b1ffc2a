"""When every pass of one configuration runs: the same schedule, pass by pass, for traces and pictures."""

from collections import deque
from collections.abc import Sequence

import numpy as np

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.pipeline.durations import Durations, Ends
from kernelcast.runtime.pipeline.messages import Message, Messages
from kernelcast.runtime.pipeline.schedules import Kind, Pass, check_shape, is_pair, stage_orders, units
from kernelcast.runtime.pipeline.simulate import all_reduce_ends, check_durations, longest_path_passes
from kernelcast.runtime.request.fields import Schedule
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS

MAX_PASSES = 4_000_000
"""Passes of a step that are listed one by one; their times take some hundred bytes each."""

_Floats = list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time of one stage, in µs from the step's start."""

    start_us: float
    end_us: float

    @property
    def duration_us(self) -> float:
        return self.end_us - self.start_us


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimeline:
    """What one stage does: passes in order (passes of a pair one after the other, although they take turns), sending
    at `sent_us` (of a pair: when its last pass ends), `all_reduces` with a span per chunk in the order in which
    gradients become ready, empty if nothing is reduced, then its `update`.
    """

    stage: int
    passes: tuple[Pass, ...]
    starts_us: tuple[float, ...]
    ends_us: tuple[float, ...]
    sent_us: tuple[float, ...]
    all_reduces: tuple[Span, ...]
    update: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """One step of one configuration: every stage, and the transfer from each chunk after its pass, in µs."""

    stages: tuple[StageTimeline, ...]
    messages: Messages
    send_forward_us: tuple[float, ...]
    send_backward_us: tuple[float, ...]

    @property
    def step_us(self) -> float:
        """When the last update ends."""
        return max(stage.update.end_us for stage in self.stages)


def step_timeline(
    *,
    schedule: Schedule,
    pp: int,
    micro_batches: int,
    virtual_stages: int = 1,
    durations: Durations,
    buckets: int | Sequence[int] = 1,
) -> StepTimeline:
    """Every pass of a step of one configuration, to the bit what `simulate` sums up. UsageError where the schedule does
    not exist for these numbers or the step has more than `MAX_PASSES` passes (some hundred bytes each).
    """
    check_shape(schedule, pp, micro_batches, virtual_stages)
    passes = pp * micro_batches * virtual_stages * (3 if SCHEDULE_KINDS[schedule].splits else 2)
    if passes > MAX_PASSES:
        raise UsageError(
            f"a step of {passes:,} passes, expected at most {MAX_PASSES:,} to list them one by one"
        )
    orders = stage_orders(schedule, pp, micro_batches, virtual_stages)
    check_durations(schedule, durations, pp, virtual_stages)
    if durations.configs != 1:
        raise UsageError(f"durations have {durations.configs} configurations, expected 1")
    if durations.overlap is not None:
        buckets = durations.overlap.buckets[0].astype(int).tolist()
    pieces = [buckets] * pp if isinstance(buckets, int) else list(buckets)
    if len(pieces) != pp or min(pieces) < 1:
        raise UsageError(f"buckets is {buckets!r:.80}, expected 1 or more for each of {pp} stages")
    on_grid = durations.on_grid(longest_path_passes(schedule, pp, micro_batches, virtual_stages))
    starts, ends, sent = _run(orders, on_grid, Messages.of(schedule, pp, virtual_stages))
    stages = []
    for stage, order in enumerate(orders):
        completing = _completing(order, starts[stage], ends[stage])
        link_us = 0.0 if on_grid.overlap is None else float(on_grid.overlap.link_us[0, stage])
        reduces = _all_reduces(completing, float(on_grid.all_reduce_us[0, stage]), pieces[stage], link_us)
        free_us = max([ends[stage][-1], *(span.end_us for span in reduces)])
        stages.append(
            StageTimeline(
                stage=stage,
                passes=order,
                starts_us=tuple(starts[stage]),
                ends_us=tuple(ends[stage]),
                sent_us=tuple(sent[stage]),
                all_reduces=reduces,
                update=Span(start_us=free_us, end_us=free_us + float(on_grid.update_us[0, stage])),
            )
        )
    return StepTimeline(
        messages=Messages.of(schedule, pp, virtual_stages),
        stages=tuple(stages),
        send_forward_us=tuple(on_grid.send_forward_us[0].tolist()),
        send_backward_us=tuple(on_grid.send_backward_us[0].tolist()),
    )


def _run(
    orders: tuple[tuple[Pass, ...], ...], durations: Durations, messages: Messages
) -> tuple[list[_Floats], list[_Floats], list[_Floats]]:
    """Start and end of every pass and when its output leaves, per stage; each runs on until an input is missing."""
    longer = _longer(orders, durations)
    times = {
        Kind.FORWARD: durations.forward_us[0].tolist(),
        Kind.BACKWARD: durations.backward_us[0].tolist(),
        Kind.WEIGHT: durations.weight_us[0].tolist(),
    }
    saved = {
        kind: [0.0] * durations.chunks if saved_us is None else saved_us[0].tolist()
        for kind, saved_us in (
            (Kind.FORWARD, durations.saved_forward_us),
            (Kind.BACKWARD, durations.saved_backward_us),
            (Kind.WEIGHT, None),
        )
    }
    sends = {
        Kind.FORWARD: durations.send_forward_us[0].tolist(),
        Kind.BACKWARD: durations.send_backward_us[0].tolist(),
    }
    arrivals: dict[Message, float] = {}
    starts: list[_Floats] = [[] for _ in orders]
    ends: list[_Floats] = [[] for _ in orders]
    sent: list[_Floats] = [[] for _ in orders]
    of_stage = [list(units(order)) for order in orders]
    done = [0] * len(orders)
    waiting = deque(range(len(orders)))
    while waiting:
        stage = waiting.popleft()
        woken = set[int]()
        while done[stage] < len(of_stage[stage]):
            unit = of_stage[stage][done[stage]]
            read = [message for one in unit if (message := messages.read(one))]
            if not all(message in arrivals for message in read):
                break
            free_us = max([ends[stage][-1] if ends[stage] else 0.0, *map(arrivals.pop, read)])
            for one in unit:
                starts[stage].append(free_us)
                free_us += times[one.kind][one.chunk]
                if is_pair(unit):
                    free_us -= saved[one.kind][one.chunk]
                free_us += longer.get(one, 0.0)
                ends[stage].append(free_us)
            for one in unit:
                sent[stage].append(free_us)
                if message := messages.sent(one):
                    arrivals[message] = free_us + sends[one.kind][one.chunk]
                    woken.add(messages.stage_of(message[1]))
            done[stage] += 1
        waiting.extend(sorted(woken - set(waiting)))
    return starts, ends, sent


def _longer(orders: tuple[tuple[Pass, ...], ...], durations: Durations) -> dict[Pass, float]:
    """What collectives of the update add to the first and to the completing pass of every chunk."""
    if durations.overlap is None:
        return {}
    found: dict[Pass, float] = {}
    for order in orders:
        completing = Kind.WEIGHT if order[-1].kind is Kind.WEIGHT else Kind.BACKWARD
        first = {one.chunk: one for one in reversed(order) if one.kind is Kind.FORWARD}
        last = {one.chunk: one for one in order if one.kind is completing}
        for passes, longer_us in ((first, durations.overlap.first_us), (last, durations.overlap.last_us)):
            found |= {one: float(longer_us[0, chunk]) for chunk, one in passes.items()}
    return found


def _completing(order: tuple[Pass, ...], starts: _Floats, ends: _Floats) -> list[Span]:
    """The pass that completes the gradients of each chunk of a stage, in the order of time."""
    kind = Kind.WEIGHT if order[-1].kind is Kind.WEIGHT else Kind.BACKWARD
    spans: dict[int, Span] = {}
    for one, start_us, end_us in zip(reversed(order), reversed(starts), reversed(ends), strict=True):
        if one.kind is kind and one.chunk not in spans:
            spans[one.chunk] = Span(start_us=start_us, end_us=end_us)
    return list(spans.values())[::-1]


def _all_reduces(
    completing: list[Span], all_reduce_us: float, buckets: int, link_us: float
) -> tuple[Span, ...]:
    if not all_reduce_us:
        return ()
    ends = Ends(
        last_start_us=np.array([[[span.start_us]] for span in completing]),
        last_end_us=np.array([[[span.end_us]] for span in completing]),
        idle_from_us=np.array([[completing[-1].end_us]]),
    )
    of_stage = (np.array([[value]]) for value in (all_reduce_us, float(buckets), link_us))
    reduced = all_reduce_ends(ends, *of_stage)[:, 0, 0].tolist()
    spans = []
    for span, before_us, end_us in zip(completing, [0.0, *reduced], reduced, strict=False):
        ready_us = span.start_us + span.duration_us / buckets
        spans.append(Span(start_us=max(before_us, ready_us), end_us=end_us))
    return tuple(spans)
