"""The time of a step under a pipeline schedule, exact or in the paper's closed form, of many configurations at once."""

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.dataclass import dataclass, fields
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.pipeline.durations import Durations, Ends, Overlap, Times, waiting_us
from kernelcast.runtime.pipeline.one_forward_one_backward import one_forward_one_backward
from kernelcast.runtime.pipeline.schedules import check_shape
from kernelcast.runtime.request.fields import Schedule
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS

_VALUES_AT_ONCE = 1 << 14
"""Stages times configurations evaluated together: some arrays of that size lie in a core's cache."""

Buckets = int | NDArray[np.int64] | Times


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A step in µs from its start, per configuration.

    `step_us`, `pipeline_us` [configs]: the end of the step, and of its last pass. Per stage, arrays [configs,
    stages]: `compute_end_us` of its last pass, `all_reduce_end_us` of its gradients' all-reduce (of its last
    pass where that takes no time), `end_us` of its update.
    """

    step_us: Times
    pipeline_us: Times
    compute_end_us: Times
    all_reduce_end_us: Times
    end_us: Times


def simulate(
    *,
    schedule: Schedule,
    pp: int,
    micro_batches: int,
    virtual_stages: int = 1,
    durations: Durations,
    buckets: Buckets = 1,
) -> Simulated:
    """Evaluate the longest path through a step's passes, transfers, all-reduces and updates.

    A pass starts when its stage has finished the pass before and its input has arrived; a transfer occupies
    neither stage. The gradients of a chunk become ready evenly while the last pass that adds to them runs (the
    last backward pass; with zero-bubble the last weight pass). They are all-reduced in `buckets` equal pieces
    (a number for all, or [configs, stages]), each when it is ready and the previous one is done; the chunks of
    a stage share its all-reduce evenly. A stage's update starts when its passes and its all-reduce are over,
    and the step ends with the last update. If `durations` has an overlap, its buckets replace `buckets`, and its times
    are added to the first forward pass and the completing pass of every chunk.

    Memory does not grow with the micro-batches, and beyond input and answer not with the configurations.

    Raises:
        UsageError: the schedule does not exist for these numbers, or the durations are for other ones.
    """
    check_shape(schedule, pp, micro_batches, virtual_stages)
    check_durations(schedule, durations, pp, virtual_stages)
    pieces = _pieces(buckets if durations.overlap is None else durations.overlap.buckets, durations)
    rows = max(1, _VALUES_AT_ONCE // pp)
    parts = [
        _simulate(schedule, micro_batches, virtual_stages, durations.take(part), pieces[part])
        for part in (slice(first, first + rows) for first in range(0, max(1, durations.configs), rows))
    ]
    names = [field.name for field in fields(Simulated)]
    return Simulated(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def longest_path_passes(schedule: Schedule, pp: int, micro_batches: int, virtual_stages: int) -> int:
    """An upper bound of the passes of one kind on a path through a schedule (`Durations.on_grid`).

    Schedules evaluated in levels have at most this number of levels, each with at most one pass of a kind.
    """
    most = 6 if SCHEDULE_KINDS[schedule].is_v else virtual_stages
    return most * (micro_batches + 4 * pp)


def check_durations(schedule: Schedule, durations: Durations, pp: int, virtual_stages: int) -> None:
    """Check that durations fit the pipeline.

    Raises:
        UsageError: they are for another number of stages or chunks, or split backward passes for a schedule
            that does not.
    """
    kind = SCHEDULE_KINDS[schedule]
    sizes = (
        ("stages", durations.stages, pp),
        ("chunks", durations.chunks, pp * virtual_stages * kind.copies),
    )
    for what, found, expected in sizes:
        if found != expected:
            raise UsageError(f"durations have {found} {what}, expected {expected}")
    if not kind.splits and durations.weight_us.any():
        raise UsageError(
            f"weight_us has a time above 0, expected 0 with schedule {schedule}, "
            "which does not split backward passes"
        )


def _pieces(buckets: Buckets, durations: Durations) -> Times:
    pieces = np.asarray(buckets, dtype=np.float64)
    if pieces.size and not (pieces.min() >= 1 and pieces.max() < np.inf):
        raise UsageError("buckets has a number below 1, expected 1 or more")
    if pieces.ndim and pieces.shape != durations.all_reduce_us.shape:
        raise UsageError(
            f"buckets has shape {pieces.shape}, expected {durations.all_reduce_us.shape} as all_reduce_us has"
        )
    return np.broadcast_to(pieces, durations.all_reduce_us.shape)


def _simulate(
    schedule: Schedule, micro_batches: int, virtual_stages: int, durations: Durations, pieces: Times
) -> Simulated:
    durations = durations.on_grid(
        longest_path_passes(schedule, durations.stages, micro_batches, virtual_stages)
    )
    ends = _evaluate(schedule, micro_batches, virtual_stages, durations)
    link_us = np.zeros_like(pieces) if durations.overlap is None else durations.overlap.link_us
    reduced = all_reduce_ends(ends, durations.all_reduce_us.T, pieces.T, link_us.T)[-1]
    end = np.maximum(ends.idle_from_us, reduced) + durations.update_us.T
    return Simulated(
        step_us=end.max(axis=0),
        pipeline_us=ends.idle_from_us.max(axis=0),
        compute_end_us=ends.idle_from_us.T,
        all_reduce_end_us=reduced.T,
        end_us=end.T,
    )


def _evaluate(schedule: Schedule, micro_batches: int, virtual_stages: int, durations: Durations) -> Ends:
    if schedule == "gpipe":
        from kernelcast.runtime.pipeline.gpipe import gpipe

        return gpipe(durations, micro_batches)
    if schedule == "interleaved":
        from kernelcast.runtime.pipeline.interleaved import interleaved

        return interleaved(durations, micro_batches, virtual_stages)
    if SCHEDULE_KINDS[schedule].is_v:
        from kernelcast.runtime.pipeline.in_levels import in_levels

        return in_levels(schedule, durations, micro_batches, virtual_stages)
    return one_forward_one_backward(durations, micro_batches, zero_bubble=schedule == "zero_bubble")


def all_reduce_ends(ends: Ends, all_reduce_us: Times, pieces: Times, link_us: Times) -> Times:
    """When the all-reduce of every chunk ends [virtual stages, stages, configs], chunks as in `ends`.

    Piece k of n is ready a share k/n into the last pass, and the network takes one piece after the other. Both
    run at an even pace, so the end is either the network's work after the first piece, or the last piece after the
    pass; or the network was still busy with the chunk before. Overlapped pieces wait for `link_us` while the pass uses
    the links itself.
    """
    share = all_reduce_us / len(ends.last_end_us)
    waits_us = np.where(share > 0, waiting_us(link_us, pieces), 0)
    network = np.zeros_like(share)
    reduced = np.empty_like(ends.last_end_us)
    for turn, (start, end) in enumerate(zip(ends.last_start_us, ends.last_end_us, strict=True)):
        first_ready = start + (end - start) / pieces
        network_us = np.maximum(network, first_ready) + share + waits_us
        network = np.maximum(network_us, end + share / pieces)
        reduced[turn] = network
    return reduced


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Times of steps in µs, float64 [configs]: the whole, and the part until the last pass ends."""

    step_us: Times
    pipeline_us: Times


def closed_forms(
    *,
    forward_us: Times,
    backward_us: Times,
    all_reduce_us: Times,
    update_us: Times,
    micro_batches: int | Times,
    overlap: Overlap | None = None,
) -> StepTimes:
    """Eq. 7 for 1F1B with data parallelism and ZeRO-1, an upper envelope of the exact schedule.

    step = (m − 1 + pp) · (max forward + max backward) + all-reduce of the first stage + max over stages of
    (optimizer + all-gather). Each maximum is taken over the stages independently; all-reduces of the later
    stages hide behind the backward passes of the earlier ones.

    The times are arrays [configs, stages]: forward and backward of one micro-batch with their sends, all-reduce and
    update (optimizer and all-gather) of one step. `micro_batches` is one number, or [configs]. With `overlap` the sum
    contains all added times of first and last passes, and only the exposed part of the first stage's all-reduce.

    Raises:
        UsageError: no stages, or no micro-batches.
    """
    pp = forward_us.shape[1]
    fewest = np.min(micro_batches, initial=1)
    if pp < 1 or fewest < 1:
        raise UsageError(f"a timeline of {pp} stages and {fewest:g} micro-batches, expected 1 or more")
    pipeline_us = (micro_batches - 1 + pp) * (forward_us.max(axis=1) + backward_us.max(axis=1))
    if overlap is not None:
        pipeline_us = pipeline_us + overlap.first_us.sum(axis=1) + overlap.last_us.sum(axis=1)
        pass_us, bucket_us = backward_us[:, :1], all_reduce_us[:, :1] / overlap.buckets[:, :1]
        room_us = np.maximum(pass_us - overlap.link_us[:, :1], 0)
        beside_us = np.minimum(all_reduce_us[:, :1] - bucket_us, room_us - room_us / overlap.buckets[:, :1])
        all_reduce_us = all_reduce_us[:, :1] - beside_us
    return StepTimes(
        step_us=pipeline_us + all_reduce_us[:, 0] + update_us.max(axis=1), pipeline_us=pipeline_us
    )
