"""The time of a step under a pipeline schedule, exact or in the paper's closed form, of many configurations at once.

1F1B (PipeDream-flush) and ZB-H1 are evaluated slot by slot. Number the slots of a 1F1B schedule so that F(s, i), the
forward pass of micro-batch i on stage s, has slot 2i + s and B(s, i) has slot 2i + 2pp − 1 − s. Every pass then waits
for two things only: what its stage did last, and what the neighbouring stage did in the slot before. In a slot every
other stage runs a forward pass, the rest run backward passes. The weight gradients of ZB-H1 follow a backward pass on
its stage and no other stage waits for them, so they keep the stage busy for longer, no more.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.dataclass import dataclass, fields
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.pipeline.durations import Durations, Ends, Overlap, Times, run_steady, waiting_us
from kernelcast.runtime.pipeline.schedules import check_shape
from kernelcast.runtime.request.fields import Schedule
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS


def one_forward_one_backward(durations: Durations, micro_batches: int, *, zero_bubble: bool) -> Ends:
    """Evaluate 1F1B or, with `zero_bubble`, ZB-H1: weight gradients s micro-batches late on stage s."""
    slots = _Slots(durations, micro_batches, zero_bubble=zero_bubble)
    slots.run()
    if not zero_bubble:
        start, end = slots.last_end - slots.backward, slots.last_end
        if slots.longer_last is not None:
            start = start - slots.longer_last
    else:
        late = np.minimum(np.arange(slots.pp), micro_batches)[:, None]
        end = slots.free + late * slots.weight
        start = end - slots.weight
        if durations.overlap is not None:
            # Nothing waits for the last weight pass.
            end = end + durations.overlap.last_us.T
    return Ends(last_start_us=start[None], last_end_us=end[None], idle_from_us=end)


class _Slots:
    """The state between two slots, [stages, configs]: `free` is the end of what the stage did last; arrivals have a row
    more: row s of `from_before` and s + 1 of `from_after` are stage s's next inputs.
    """

    def __init__(self, durations: Durations, micro_batches: int, *, zero_bubble: bool) -> None:
        self.forward = np.ascontiguousarray(durations.forward_us.T)
        self.backward = np.ascontiguousarray(durations.backward_us.T)
        self.weight = np.ascontiguousarray(durations.weight_us.T)
        self.send_forward = np.ascontiguousarray(durations.send_forward_us.T)
        self.send_backward = np.ascontiguousarray(durations.send_backward_us.T)
        self.pp, configs = self.forward.shape
        self.micro_batches, self.zero_bubble = micro_batches, zero_bubble
        overlap = durations.overlap
        self.longer_first = None if overlap is None else overlap.first_us.T
        self.longer_last = None if overlap is None or zero_bubble else overlap.last_us.T
        self.free = np.zeros((self.pp, configs))
        self.from_before = np.zeros((self.pp + 1, configs))
        self.from_after = np.zeros((self.pp + 1, configs))
        self.last_end = np.empty((self.pp, configs))

    def run(self) -> None:
        """All slots; those in which every stage has all its work two at a time."""
        last = 2 * (self.micro_batches + self.pp) - 3
        steady = 3 * self.pp - 2 if self.zero_bubble else 2 * self.pp - 1
        steady += steady % 2
        # Up to the last forward pass of the first stage, and before the last backward pass of the last one.
        stop = min(2 * self.micro_batches, 2 * self.micro_batches - 2 + self.pp)
        ticks = max(0, (stop - steady) // 2)
        self._slots(0, min(steady, last + 1))
        if ticks:
            self._steady(ticks)
        self._slots(steady + 2 * ticks, last + 1)

    def _slots(self, first: int, stop: int) -> None:
        latest = 2 * (self.micro_batches - 1)  # from the slot of a stage's first pass to that of its last
        for slot in range(first, stop):
            low, high = max(slot % 2, slot - latest), min(slot, self.pp - 1)
            if low <= high:
                self._forward(slot, low, high)
            # The stage with its first backward pass now, and from there on every other one.
            newest = 2 * self.pp - 1 - slot
            low, high = max(newest, (slot + 1) % 2), min(newest + latest, self.pp - 1)
            if low <= high:
                self._backward(slot, low, high)

    def _forward(self, slot: int, low: int, high: int) -> None:
        free, stages = self.free[low : high + 1 : 2], slice(low, high + 1, 2)
        np.maximum(free, self.from_before[stages], out=free)
        free += self.forward[stages]
        if self.longer_first is not None and slot < self.pp:  # the stage's first pass
            self.free[slot] += self.longer_first[slot]
        np.add(free, self.send_forward[stages], out=self.from_before[low + 1 : high + 2 : 2])

    def _backward(self, slot: int, low: int, high: int) -> None:
        free, stages = self.free[low : high + 1 : 2], slice(low, high + 1, 2)
        np.maximum(free, self.from_after[low + 1 : high + 2 : 2], out=free)
        free += self.backward[stages]
        done = 2 * (self.micro_batches + self.pp) - 3 - slot  # the stage whose last micro-batch this is
        if done <= high:
            if self.longer_last is not None:
                self.free[done] += self.longer_last[done]
            self.last_end[done] = self.free[done]
        np.add(free, self.send_backward[stages], out=self.from_after[stages])
        if self.zero_bubble:
            # W(s, i − s) follows B(s, i) on the stages with i ≥ s.
            high = min(high, slot - 2 * self.pp + 1)
            if low <= high:
                self.free[low : high + 1 : 2] += self.weight[low : high + 1 : 2]

    def _steady(self, ticks: int) -> None:
        # Between ticks `free` says all: odd stages have just sent forward, even ones backward.
        self.free = run_steady(partial(_Ticks, self), self.free, ticks, history=self.pp)
        weight = self.weight[::2] if self.zero_bubble else 0.0
        self.from_after[: self.pp : 2] = self.free[::2] - weight + self.send_backward[::2]
        odd = self.free[1::2] + self.send_forward[1::2]
        self.from_before[2::2] = odd


class _Ticks:
    """Two slots with all stages busy: even ones forward and odd ones backward, then the reverse."""

    def __init__(self, slots: _Slots, configs: NDArray[np.intp]) -> None:
        forward, backward = slots.forward[:, configs], slots.backward[:, configs]
        weight = slots.weight[:, configs] if slots.zero_bubble else np.zeros_like(forward)
        send_forward, send_backward = slots.send_forward[:, configs], slots.send_backward[:, configs]
        self.zero_bubble = slots.zero_bubble
        self.odd = slots.pp // 2
        self.inner = (slots.pp - 1) // 2  # even stages that have a stage before them
        self.forward_even, self.forward_odd = forward[::2].copy(), forward[1::2].copy()
        self.backward_odd, self.weight_odd = backward[1::2].copy(), weight[1::2].copy()
        self.both_even = (backward + weight)[::2].copy()
        self.send_forward_odd = send_forward[1::2][: self.inner].copy()
        self.send_forward_even = send_forward[::2][: self.odd].copy()
        self.send_backward_odd = send_backward[1::2].copy()
        # The gradients of the inputs left before the weight's were computed.
        self.send_backward_even = (send_backward - weight)[2::2].copy()

    def __call__(self, free: Times) -> None:
        even, odd = free[::2], free[1::2]
        down = odd[: self.inner] + self.send_forward_odd
        up = even[1:] + self.send_backward_even
        np.maximum(even[1:], down, out=even[1:])
        even += self.forward_even
        np.maximum(odd[: self.inner], up, out=odd[: self.inner])
        odd += self.backward_odd
        down = even[: self.odd] + self.send_forward_even
        up = odd + self.send_backward_odd
        if self.zero_bubble:
            odd += self.weight_odd
        np.maximum(odd, down, out=odd)
        odd += self.forward_odd
        np.maximum(even[: self.odd], up, out=even[: self.odd])
        even += self.both_even


_VALUES_AT_ONCE = 1 << 14
"""Stages times configurations evaluated together: some arrays of that size lie in a core's cache."""

Buckets = int | NDArray[np.int64] | Times


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A step in µs from its start: `step_us`, `pipeline_us` [configs], the end of its last pass; per stage [configs,
    stages] `compute_end_us`, `all_reduce_end_us` (of its last pass where that takes no time), `end_us` of its update.
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

    Memory does not grow with the micro-batches, and beyond input and answer not with the configurations. UsageError
    where the schedule does not exist for these numbers, or the durations are for other ones.
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
    """An upper bound of the passes of one kind on a path, and of levels (`Durations.on_grid`)."""
    most = 6 if SCHEDULE_KINDS[schedule].is_v else virtual_stages
    return most * (micro_batches + 4 * pp)


def check_durations(schedule: Schedule, durations: Durations, pp: int, virtual_stages: int) -> None:
    """UsageError unless durations fit stages and chunks, and split backward passes only if the schedule does."""
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
    """When the all-reduce of every chunk ends [virtual stages, stages, configs], chunks as in `ends`. Pieces are ready
    evenly over the last pass and sent one by one: the end is the network's work after the first piece, the last piece
    after the pass, or after the chunk before. Pieces wait for `link_us`.
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
    UsageError without stages or micro-batches.
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
        overlapped_us = np.minimum(
            all_reduce_us[:, :1] - bucket_us, room_us - room_us / overlap.buckets[:, :1]
        )
        all_reduce_us = all_reduce_us[:, :1] - overlapped_us
    return StepTimes(
        step_us=pipeline_us + all_reduce_us[:, 0] + update_us.max(axis=1), pipeline_us=pipeline_us
    )
