"""Pipeline schedules: the order of passes on every stage (docs/timeline.md, Schedules)."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import chain
from typing import NamedTuple

import numpy as np

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.pipeline.durations import Durations, Times
from kernelcast.runtime.request.fields import Schedule
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS, check_schedule


class Kind(StrEnum):
    """What a pass computes."""

    FORWARD = "forward"
    BACKWARD = "backward"  # with a schedule that splits it only the gradients of the inputs
    WEIGHT = "weight"  # gradients of the weights; only with a schedule that splits the backward pass


class Pass(NamedTuple):
    """One pass of one micro-batch through one chunk. With `joined` it runs together with the pass listed after it: both
    start when both inputs have arrived, and send when the last one ends.
    """

    kind: Kind
    chunk: int
    micro_batch: int
    joined: bool = False


def units(order: Iterable[Pass]) -> Iterator[tuple[Pass, ...]]:
    """The passes of a stage, those together that are joined."""
    unit: list[Pass] = []
    for one in order:
        unit.append(one)
        if not one.joined:
            yield tuple(unit)
            unit = []


def is_pair(unit: tuple[Pass, ...]) -> bool:
    """Whether a forward and a backward pass run together, each computing while the other one communicates."""
    return len(unit) > 1 and unit[0].kind is Kind.FORWARD


def zb_v(stage: int, pp: int, micro_batches: int, virtual_stages: int) -> Iterator[Pass]:
    """ZB-V in its fixed order (arXiv 2401.10241, section 6; torch's ScheduleZBVZeroBubble), made for 2 pp − 1
    micro-batches or more; fewer are left out. With equal passes no stage waits, with at most 2 pp chunk passes in
    flight.
    """
    chunks = stage, 2 * pp - 1 - stage
    done = {(kind, side): 0 for kind in Kind for side in (0, 1)}

    def run(side: int, *kinds: Kind) -> Iterator[Pass]:
        for kind in kinds:
            micro_batch = done[kind, side]
            done[kind, side] += 1
            if micro_batch < micro_batches:
                yield Pass(kind, chunks[side], micro_batch)

    forward, backward, weight = Kind
    planned = max(2 * pp - 1, micro_batches)
    for _ in range(2 * (pp - stage) - 1):
        yield from run(0, forward)
    for _ in range(stage):
        yield from run(1, forward)
        yield from run(0, forward)
    for _ in range(pp - stage):
        yield from run(1, forward, backward, weight)
    while done[forward, 1] < planned:
        if done[forward, 0] < planned:
            yield from run(0, forward)
        yield from run(0, backward, weight)
        yield from run(1, forward, backward, weight)
    for _ in range(stage):
        yield from run(0, backward)
        yield from run(1, backward)
    for _ in range(pp - stage):
        yield from run(0, backward, weight)
    for side in (1, 0):
        while done[weight, side] < planned:
            yield from run(side, weight)


def dualpipe_v(stage: int, pp: int, micro_batches: int, virtual_stages: int) -> Iterator[Pass]:
    """DualPipe-V: a DualPipe cut in half, whose two directions are the two halves of one model (`_folded`)."""
    return _folded(pp, stage, micro_batches, ((stage, 0), (2 * pp - 1 - stage, 0)))


def dualpipe(stage: int, pp: int, micro_batches: int, virtual_stages: int) -> Iterator[Pass]:
    """DualPipe (arXiv 2412.19437, section 3.2.1): half of the micro-batches enter at either end; chunks from pp on are
    the second copy of the model, which begins on the last stage.
    """
    half = micro_batches // 2
    own, other = (stage, 0), (2 * pp - 1 - stage, half)
    near = min(stage, pp - 1 - stage)
    return _folded(pp // 2, near, half, (own, other) if stage < pp // 2 else (other, own))


def _folded(
    stages: int, stage: int, micro_batches: int, sides: tuple[tuple[int, int], tuple[int, int]]
) -> Iterator[Pass]:
    """The order of a stage in one of DualPipe's halves, as its authors run it (github.com/deepseek-ai/DualPipe);
    `sides` are chunk and first micro-batch of what comes in here, and comes back. Some weight gradients are split off
    to fill waits.
    """
    done = {(kind, side): 0 for kind in Kind for side in (0, 1)}
    late: deque[int] = deque()

    def one(kind: Kind, side: int, *, joined: bool = False) -> Pass:
        chunk, first = sides[side]
        done[kind, side] += 1
        return Pass(kind, chunk, first + done[kind, side] - 1, joined)

    def backward(side: int, *, split: bool = False) -> Iterator[Pass]:
        yield one(Kind.BACKWARD, side, joined=not split)
        if split:
            late.append(side)
        else:
            yield one(Kind.WEIGHT, side)

    def pair(side: int) -> Iterator[Pass]:
        yield one(Kind.FORWARD, side, joined=True)
        yield from backward(1 - side)

    later = stages - 1 - stage
    for side in (*(0,) * 2 * later, *(0, 1) * (stage + 1)):
        yield one(Kind.FORWARD, side)
    for _ in range(later):
        yield from backward(1, split=True)
        yield one(Kind.WEIGHT, late.popleft())
        yield one(Kind.FORWARD, 1)
    for index in range(micro_batches - 2 * stages + stage + 1):
        if index == 0 and not later:
            # Not together: the backward pass reads a tensor that this stage has just computed.
            yield one(Kind.FORWARD, 0)
            yield from backward(1)
        else:
            yield from pair(0)
        yield from pair(1)
    for _ in range(later):
        yield from backward(1)
        yield from pair(1)
    turns = 2 * (stage + 1)
    for turn in range(turns):
        # The second half of them is split.
        yield from backward(1 - turn % 2, split=turn >= turns // 2)
    for _ in range(later):
        yield one(Kind.WEIGHT, late.popleft())
        yield from backward(0, split=True)
    while late:
        yield one(Kind.WEIGHT, late.popleft())


def check_shape(schedule: Schedule, pp: int, micro_batches: int, virtual_stages: int) -> None:
    """Check that all numbers are 1 or more, and as `check_schedule`; else UsageError."""
    if schedule not in _ORDERS:
        raise UsageError(f"schedule is {schedule!r:.80}, expected one of {', '.join(_ORDERS)}")
    sizes = (("pp", pp), ("micro_batches", micro_batches), ("virtual_stages", virtual_stages))
    for name, value in sizes:
        if value < 1:
            raise UsageError(f"{name} is {value}, expected 1 or more")
    check_schedule(schedule, pp, micro_batches, virtual_stages)


def stage_orders(
    schedule: Schedule, pp: int, micro_batches: int, virtual_stages: int = 1
) -> tuple[tuple[Pass, ...], ...]:
    """The passes of every stage, in the order in which the stage runs them; errors as `check_shape`."""
    check_shape(schedule, pp, micro_batches, virtual_stages)
    order = _ORDERS[schedule]
    return tuple(tuple(order(stage, pp, micro_batches, virtual_stages)) for stage in range(pp))


def saved_in_pairs_us(
    durations: Durations, schedule: Schedule, micro_batches: int, virtual_stages: int = 1
) -> Times:
    """Time that passes save in a step by running together, float64 [configs, stages]."""
    found = np.zeros((durations.configs, durations.stages))
    if not SCHEDULE_KINDS[schedule].pairs:
        return found
    saved = {Kind.FORWARD: durations.saved_forward_us, Kind.BACKWARD: durations.saved_backward_us}
    orders = stage_orders(schedule, durations.stages, micro_batches, virtual_stages)
    for stage, order in enumerate(orders):
        paired = Counter(one[:2] for unit in units(order) if is_pair(unit) for one in unit)
        for (kind, chunk), count in paired.items():
            saved_us = saved.get(kind)
            if saved_us is not None:
                found[:, stage] += count * saved_us[:, chunk]
    return found


def warm_up_passes(schedule: Schedule, stage: int, pp: int, virtual_stages: int = 1) -> int:
    """Forward passes of a stage before the one that its first backward pass follows: the number of later stages;
    interleaved twice that, and pp micro-batches through every chunk but the last (Megatron-LM).
    """
    later = pp - 1 - stage
    return 2 * later + (virtual_stages - 1) * pp if schedule == "interleaved" else later


def chunk_round(index: int, pp: int, virtual_stages: int) -> tuple[int, int]:
    """Interleaved: chunk of the stage and micro-batch of its pass `index`; groups of pp go chunk after chunk."""
    group, rest = divmod(index, pp * virtual_stages)
    chunk, micro_batch = divmod(rest, pp)
    return chunk, group * pp + micro_batch


def _gpipe(stage: int, pp: int, micro_batches: int, virtual_stages: int) -> Iterator[Pass]:
    # Backward in the order of the forward passes: all micro-batches take the same times, so that the reverse
    # order of arXiv 1811.06965 gives the same timeline with other labels.
    return chain(
        (Pass(Kind.FORWARD, stage, index) for index in range(micro_batches)),
        (Pass(Kind.BACKWARD, stage, index) for index in range(micro_batches)),
    )


def _one_forward_one_backward(stage: int, pp: int, micro_batches: int, virtual_stages: int) -> Iterator[Pass]:
    warm_up = warm_up_passes("1f1b", stage, pp)
    for tick in range(micro_batches + warm_up):
        if tick < micro_batches:
            yield Pass(Kind.FORWARD, stage, tick)
        if tick >= warm_up:
            yield Pass(Kind.BACKWARD, stage, tick - warm_up)


def _zero_bubble(stage: int, pp: int, micro_batches: int, virtual_stages: int) -> Iterator[Pass]:
    # ZB-H1: weight gradients come `stage` micro-batches late. Together with the forward passes under way
    # that makes pp micro-batches' activations on every stage, the first stage's of 1F1B.
    for one in _one_forward_one_backward(stage, pp, micro_batches, virtual_stages):
        yield one
        if one.kind is Kind.BACKWARD and one.micro_batch >= stage:
            yield Pass(Kind.WEIGHT, stage, one.micro_batch - stage)
    for index in range(max(0, micro_batches - stage), micro_batches):
        yield Pass(Kind.WEIGHT, stage, index)


def _interleaved(stage: int, pp: int, micro_batches: int, virtual_stages: int) -> Iterator[Pass]:
    warm_up = warm_up_passes("interleaved", stage, pp, virtual_stages)
    passes = micro_batches * virtual_stages
    for tick in range(passes + warm_up):
        if tick < passes:
            chunk, micro_batch = chunk_round(tick, pp, virtual_stages)
            yield Pass(Kind.FORWARD, chunk * pp + stage, micro_batch)
        if tick >= warm_up:
            chunk, micro_batch = chunk_round(tick - warm_up, pp, virtual_stages)
            yield Pass(Kind.BACKWARD, (virtual_stages - 1 - chunk) * pp + stage, micro_batch)


_ORDERS: dict[Schedule, Callable[[int, int, int, int], Iterator[Pass]]] = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "interleaved": _interleaved,
    "zero_bubble": _zero_bubble,
    "zb_v": zb_v,
    "dualpipe": dualpipe,
    "dualpipe_v": dualpipe_v,
}
