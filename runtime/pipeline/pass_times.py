"""When every pass of one configuration runs: the same schedule, pass by pass, for traces and pictures."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.pipeline.durations import Durations
from kernelcast.runtime.pipeline.ends import Ends
from kernelcast.runtime.pipeline.schedules import Kind, Pass, check_shape, stage_orders
from kernelcast.runtime.pipeline.simulate import all_reduce_ends, check_durations, longest_path_passes
from kernelcast.runtime.request.fields import Schedule

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
        """Its length."""
        return self.end_us - self.start_us


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimeline:
    """What one stage does: its passes in order, with `starts_us` and `ends_us`, then its update.

    `all_reduces` has a span per chunk in the order in which gradients get ready, from the first piece that is
    ready to the last that is through; empty where nothing is reduced. `update` follows passes and all-reduces.
    """

    stage: int
    passes: tuple[Pass, ...]
    starts_us: tuple[float, ...]
    ends_us: tuple[float, ...]
    all_reduces: tuple[Span, ...]
    update: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """One step of one configuration: every stage, and the transfer from each chunk after its pass, in µs."""

    stages: tuple[StageTimeline, ...]
    schedule: Schedule
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
    """Every pass of a step of one configuration, to the bit what `simulate` sums up.

    Time and memory are proportional to the passes (a microsecond and some hundred bytes each).

    Raises:
        UsageError: the schedule does not exist for these numbers, the durations are for other ones or for
            several configurations, or the step has more than `MAX_PASSES` passes.
    """
    check_shape(schedule, pp, micro_batches, virtual_stages)
    passes = pp * micro_batches * virtual_stages * (3 if schedule == "zero_bubble" else 2)
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
    on_grid = durations.on_grid(longest_path_passes(pp, micro_batches, virtual_stages))
    starts, ends = _run(orders, on_grid, micro_batches)
    stages = []
    for stage, order in enumerate(orders):
        completing = _completing(order, starts[stage], ends[stage])
        reduces = _all_reduces(completing, float(on_grid.all_reduce_us[0, stage]), pieces[stage])
        free_us = max([ends[stage][-1], *(span.end_us for span in reduces)])
        stages.append(
            StageTimeline(
                stage=stage,
                passes=order,
                starts_us=tuple(starts[stage]),
                ends_us=tuple(ends[stage]),
                all_reduces=reduces,
                update=Span(start_us=free_us, end_us=free_us + float(on_grid.update_us[0, stage])),
            )
        )
    return StepTimeline(
        schedule=schedule,
        stages=tuple(stages),
        send_forward_us=tuple(on_grid.send_forward_us[0].tolist()),
        send_backward_us=tuple(on_grid.send_backward_us[0].tolist()),
    )


def _run(
    orders: tuple[tuple[Pass, ...], ...], durations: Durations, micro_batches: int
) -> tuple[list[_Floats], list[_Floats]]:
    """Start and end of every pass, per stage: each stage runs on until an input is missing."""
    longer: dict[tuple[Kind, int], _Floats] = {}
    if durations.overlap is not None:
        completing = Kind.WEIGHT if orders[0][-1].kind is Kind.WEIGHT else Kind.BACKWARD
        longer[Kind.FORWARD, 0] = durations.overlap.first_us[0].tolist()
        longer[completing, micro_batches - 1] = durations.overlap.last_us[0].tolist()
    chunks, pp = durations.chunks, len(orders)
    times = {
        Kind.FORWARD: durations.forward_us[0].tolist(),
        Kind.BACKWARD: durations.backward_us[0].tolist(),
        Kind.WEIGHT: durations.weight_us[0].tolist(),
    }
    send_forward, send_backward = (
        durations.send_forward_us[0].tolist(),
        durations.send_backward_us[0].tolist(),
    )
    # Arrival of the input of (kind, chunk, micro-batch). The first chunk's is there from the start; that of
    # the last chunk's backward pass, the loss, is there when its forward pass is, earlier on the same stage.
    arrivals: dict[tuple[Kind, int, int], float] = {}
    starts: list[_Floats] = [[] for _ in orders]
    ends: list[_Floats] = [[] for _ in orders]
    waiting = deque(range(pp))
    while waiting:
        stage = waiting.popleft()
        order, done = orders[stage], ends[stage]
        free_us, woken = done[-1] if done else 0.0, set[int]()
        while len(done) < len(order):
            kind, chunk, micro_batch = order[len(done)]
            if kind is Kind.WEIGHT or chunk == (0 if kind is Kind.FORWARD else chunks - 1):
                start_us = free_us
            else:
                arrival = arrivals.pop((kind, chunk, micro_batch), None)
                if arrival is None:
                    break
                start_us = max(free_us, arrival)
            free_us = start_us + times[kind][chunk]
            if (kind, micro_batch) in longer:
                free_us += longer[kind, micro_batch][chunk]
            starts[stage].append(start_us)
            done.append(free_us)
            if kind is Kind.FORWARD and chunk + 1 < chunks:
                arrivals[kind, chunk + 1, micro_batch] = free_us + send_forward[chunk]
                woken.add((chunk + 1) % pp)
            elif kind is Kind.BACKWARD and chunk:
                arrivals[kind, chunk - 1, micro_batch] = free_us + send_backward[chunk]
                woken.add((chunk - 1) % pp)
        waiting.extend(sorted(woken - set(waiting)))
    return starts, ends


def _completing(order: tuple[Pass, ...], starts: _Floats, ends: _Floats) -> list[Span]:
    """The pass that completes the gradients of each chunk of a stage, in the order of time."""
    kind = Kind.WEIGHT if order[-1].kind is Kind.WEIGHT else Kind.BACKWARD
    spans: dict[int, Span] = {}
    for one, start_us, end_us in zip(reversed(order), reversed(starts), reversed(ends), strict=True):
        if one.kind is kind and one.chunk not in spans:
            spans[one.chunk] = Span(start_us=start_us, end_us=end_us)
    return list(spans.values())[::-1]


def _all_reduces(completing: list[Span], all_reduce_us: float, buckets: int) -> tuple[Span, ...]:
    if not all_reduce_us:
        return ()
    ends = Ends(
        last_start_us=np.array([[[span.start_us]] for span in completing]),
        last_end_us=np.array([[[span.end_us]] for span in completing]),
        idle_from_us=np.array([[completing[-1].end_us]]),
    )
    reduced = all_reduce_ends(ends, np.array([[all_reduce_us]]), np.array([[float(buckets)]]))[
        :, 0, 0
    ].tolist()
    spans = []
    for span, before_us, end_us in zip(completing, [0.0, *reduced], reduced, strict=False):
        ready_us = span.start_us + span.duration_us / buckets
        spans.append(Span(start_us=max(before_us, ready_us), end_us=end_us))
    return tuple(spans)
