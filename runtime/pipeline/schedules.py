"""Pipeline schedules: the order of passes on every stage (docs/timeline.md, Schedules)."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.pipeline.durations import Durations, Times
from kernelcast.runtime.pipeline.passes import Kind, Pass, is_pair, units
from kernelcast.runtime.pipeline.v_shaped import dualpipe, dualpipe_v, zb_v
from kernelcast.runtime.request.fields import Schedule
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS, check_schedule


def check_shape(schedule: Schedule, pp: int, micro_batches: int, virtual_stages: int) -> None:
    """Check that a schedule exists for these numbers.

    Raises:
        UsageError: a number is below 1, or `check_schedule` refuses them.
    """
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
    """The passes of every stage, in the order in which the stage runs them.

    Raises:
        UsageError: see `check_shape`.
    """
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
    """Forward passes of a stage before the one that its first backward pass follows, given enough work.

    1F1B and zero-bubble: the number of later stages. Interleaved: twice that number, and a round of pp micro-batches
    through every chunk but the last (Megatron-LM).
    """
    later = pp - 1 - stage
    return 2 * later + (virtual_stages - 1) * pp if schedule == "interleaved" else later


def chunk_round(index: int, pp: int, virtual_stages: int) -> tuple[int, int]:
    """Interleaved: (chunk of the stage counted from its first, micro-batch) of a stage's pass `index`.

    Micro-batches go in groups of pp, every group through chunk after chunk.
    """
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
