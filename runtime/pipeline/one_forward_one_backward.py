"""1F1B (PipeDream-flush) and ZB-H1, evaluated slot by slot for many configurations at once.

Number the slots of a 1F1B schedule so that F(s, i), the forward pass of micro-batch i on stage s, has slot
2i + s and B(s, i) has slot 2i + 2pp − 1 − s. Every pass then waits for two things only: what its stage did
last, and what the neighbouring stage did in the slot before. In a slot every other stage runs a forward pass,
the rest run backward passes. The weight gradients of ZB-H1 follow a backward pass on its stage and no other
stage waits for them, so they keep the stage busy for longer, no more.
"""

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.pipeline.durations import Durations, Ends, Times, run_steady


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
    """The state between two slots: arrays [stages, configs]; arrays of arrivals have one more row.

    `free` is the end of what the stage did last; row s of `from_before` and row s + 1 of `from_after` say when
    the input of the next forward and backward pass of stage s arrives.
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
        self.free = run_steady(self._ticks, self.free, ticks, history=self.pp)
        weight = self.weight[::2] if self.zero_bubble else 0.0
        self.from_after[: self.pp : 2] = self.free[::2] - weight + self.send_backward[::2]
        odd = self.free[1::2] + self.send_forward[1::2]
        self.from_before[2::2] = odd

    def _ticks(self, configs: NDArray[np.intp]) -> "_Ticks":
        return _Ticks(self, configs)


class _Ticks:
    """Two slots with all stages busy: even ones forward and odd ones backward, then the other way round."""

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
