"""Times of a simulated pipeline: passes, transfers, updates, collectives that overlap with them, repeating rounds."""

from collections import deque
from collections.abc import Callable
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.dataclass import dataclass, fields, replace
from kernelcast.runtime.errors import UsageError

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Effect of overlapped collectives on an update's first and last passes, in µs: `first_us` and `last_us` [configs,
    chunks] are added to a chunk's; `buckets` [configs, stages] counts pieces per chunk, `link_us` is how long the
    completing pass uses the same links itself.
    """

    first_us: Times
    last_us: Times
    buckets: Times
    link_us: Times

    def take(self, rows: slice | NDArray[np.intp] | NDArray[np.bool_]) -> Self:
        """Some of the configurations."""
        return type(self)(**{one.name: getattr(self, one.name)[rows] for one in fields(self)})


def slowed_us(
    pass_us: Times, network_us: Times, buckets: Times, exposed_share: float, link_us: Times
) -> Times:
    """Time in µs added to a pass d that overlaps with n = `buckets` pieces of a collective a, one outside:
    it takes min(d + k · a, (d − k · l) / (1 − k)) with k = `exposed_share` · (n − 1) / n, l = `link_us` on the same
    links.
    """
    slower = exposed_share * (buckets - 1) / buckets
    longer: Times = np.minimum(slower * network_us, (pass_us - link_us) * slower / (1 - slower))
    return longer


def gathered_us(
    pass_us: Times, network_us: Times, buckets: Times, exposed_share: float, link_us: Times
) -> Times:
    """Time in µs added to a pass whose parameters arrive in `buckets` pieces while it runs: one piece of pass or gather
    is exposed, max(a / n + d, a + l · (n − 1) / n + d / n), with d as `slowed_us` makes it.
    """
    slowed = pass_us + slowed_us(pass_us, network_us, buckets, exposed_share, link_us)
    busy_us = network_us + waiting_us(link_us, buckets)
    whole: Times = np.maximum(network_us / buckets + slowed, busy_us + slowed / buckets)
    return whole - pass_us


def beyond_us(network_us: Times, pass_us: Times, exposed_share: float, stages: int) -> Times:
    """Time in µs by which the rest of a chunk's collective slows passes of the stage's other chunks, until it ran
    another one for as many micro-batches as there are stages: all stages lose it at once.
    """
    longer: Times = exposed_share * np.clip(network_us, 0, (stages - 1) * pass_us) / stages
    return longer


def waiting_us(link_us: Times, buckets: Times) -> Times:
    """Time that overlapped pieces wait for the pass's own collectives on the same links; the exposed piece does not."""
    waits: Times = link_us * (buckets - 1) / buckets
    return waits


def gathered_together_us(
    pass_us: Times,
    send_us: Times,
    network_us: Times,
    buckets: Times,
    exposed_share: float,
    link_us: Times,
    stages: int,
) -> Times:
    """The same where all stages begin their gathers with the step, as interleaved schedules do; [configs, chunks].

    A stage gathers one chunk after the other (chunk c is on stage c mod `stages`), and the first micro-batch comes to a
    chunk `send_us` after its pass through the one before: until then its gathers hide.
    """
    longer, arrival_us = np.empty_like(pass_us), np.zeros(len(pass_us))
    for chunk in range(pass_us.shape[1]):
        own, whole, pieces, link = (of[:, chunk] for of in (pass_us, network_us, buckets, link_us))
        begin_us = chunk // stages * whole
        left_us = np.clip(begin_us + whole - np.maximum(arrival_us, begin_us), 0, whole)
        slowed = own + slowed_us(own, left_us, pieces, exposed_share, link)
        first_us, last_us = begin_us + whole / pieces, begin_us + whole
        last_us = last_us + np.where(left_us > 0, waiting_us(link, pieces), 0)
        end_us = np.maximum(np.maximum(arrival_us, first_us) + slowed, last_us + slowed / pieces)
        if chunk >= stages:
            end_us = end_us + beyond_us(whole - left_us, own, exposed_share, stages)
        longer[:, chunk] = end_us - arrival_us - own
        arrival_us = end_us + send_us[:, chunk]
    return np.maximum(longer, 0.0)


MAX_US = 1e100
"""No time is that long; sums of millions of them are still finite."""

PER_CHUNK = ("forward_us", "backward_us", "weight_us", "send_forward_us", "send_backward_us")
PER_STAGE = ("all_reduce_us", "update_us")
SAVED = ("saved_forward_us", "saved_backward_us")
OVERLAPPING = ("first_us", "last_us", "link_us")
"""Times of an `Overlap`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Times in µs of the pieces of a step, for many configurations at once.

    Per micro-batch, arrays [configs, chunks]:

    - `forward_us`, `backward_us`: the passes; if the schedule splits backward passes, `backward_us` is the part of the
      input gradients and `weight_us` the part of the weight gradients, else `weight_us` is 0;
    - `send_forward_us`, `send_backward_us`: the transfer to the next chunk after a forward pass, and to the previous
      chunk after a backward pass; 0 without one;
    - `saved_forward_us`, `saved_backward_us`: time saved by a forward and a backward pass that run together
      (`schedules.is_pair`); None for no saving.

    Per update, arrays [configs, stages]: `all_reduce_us` of a stage's gradients, `update_us` of its optimizer with the
    all-gather. `overlap` if collectives of the update overlap with passes. UsageError for shapes that do not go
    together, or a time that is negative or not finite.
    """

    forward_us: Times
    backward_us: Times
    weight_us: Times
    send_forward_us: Times
    send_backward_us: Times
    all_reduce_us: Times
    update_us: Times
    overlap: Overlap | None = None
    saved_forward_us: Times | None = None
    saved_backward_us: Times | None = None

    def __post_init__(self) -> None:
        for names in ((*PER_CHUNK, *self._saved), PER_STAGE):
            expected = getattr(self, names[0]).shape
            for name in names:
                array: Times = getattr(self, name)
                if array.ndim != 2 or array.shape != expected or array.shape[0] != self.configs:
                    raise UsageError(
                        f"{name} has shape {array.shape}, expected {expected} as {names[0]} has, "
                        f"for {self.configs} configuration(s)"
                    )
                # A comparison with NaN is false.
                if array.size and not (array.min() >= 0 and array.max() <= MAX_US):
                    raise UsageError(
                        f"{name} has a time that is negative, above {MAX_US:g} µs or not a number"
                    )
        for name, of in zip(SAVED, PER_CHUNK, strict=False):
            if name in self._saved and (getattr(self, name) > getattr(self, of)).any():
                raise UsageError(f"{name} has a time above {of}, expected at most as much")
        if self.overlap is not None:
            for name, like in (
                ("first_us", "forward_us"),
                ("last_us", "forward_us"),
                ("buckets", "all_reduce_us"),
                ("link_us", "all_reduce_us"),
            ):
                array, expected = getattr(self.overlap, name), getattr(self, like).shape
                if array.shape != expected:
                    raise UsageError(
                        f"overlap has {name} of shape {array.shape}, expected {expected} as {like} has"
                    )
                if array.size and not (array.min() >= (name == "buckets") and array.max() <= MAX_US):
                    raise UsageError(
                        f"overlap has a value of {name} that is too small, too large or not a number"
                    )

    @property
    def configs(self) -> int:
        return int(self.forward_us.shape[0])

    @property
    def chunks(self) -> int:
        """Pieces of the model: stages · virtual stages."""
        return int(self.forward_us.shape[1])

    @property
    def stages(self) -> int:
        return int(self.all_reduce_us.shape[1])

    @property
    def _saved(self) -> tuple[str, ...]:
        """The names in `SAVED` that are not None."""
        return tuple(name for name in SAVED if getattr(self, name) is not None)

    def take(self, rows: slice | NDArray[np.intp]) -> Self:
        """Some of the configurations."""
        overlap = None if self.overlap is None else self.overlap.take(rows)
        names = (*PER_CHUNK, *PER_STAGE, *self._saved)
        return type(self)(**{name: getattr(self, name)[rows] for name in names}, overlap=overlap)

    def on_grid(self, passes: int) -> Self:
        """The same times, rounded to a power of two below 2⁻⁵² of the longest path of `passes` passes of each kind:
        sums are exact in any order, so all ways to evaluate a schedule agree to the bit, and repetitions are detected.
        """
        longest = np.zeros(self.configs)
        # The last chunk sends nothing forward and the first one nothing backward, whatever the arrays contain.
        used = {"send_forward_us": slice(None, -1), "send_backward_us": slice(1, None)}
        for names, repeats in ((PER_CHUNK, passes), (PER_STAGE, 1)):
            for name in names:
                times: Times = getattr(self, name)[:, used.get(name, slice(None))]
                longest += repeats * times.max(axis=1, initial=0.0)
        if self.overlap is not None:
            longest += sum(getattr(self.overlap, name).sum(axis=1) for name in OVERLAPPING)
        _, exponent = np.frexp(longest)  # longest < 2^exponent, so 2^(exponent − 52) leaves a bit to spare
        grid = np.ldexp(1.0, np.maximum(exponent - 52, -900))[:, None]  # dividing by it stays finite

        def rounded(times: Times) -> Times:
            on_grid: Times = np.rint(times / grid) * grid
            return on_grid

        overlap = self.overlap and replace(
            self.overlap, **{name: rounded(getattr(self.overlap, name)) for name in OVERLAPPING}
        )
        arrays = (*PER_CHUNK, *PER_STAGE, *self._saved)
        return type(self)(**{name: rounded(getattr(self, name)) for name in arrays}, overlap=overlap)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """When stages finish, in µs from the step's start: `last_start_us`, `last_end_us` [virtual stages, stages, configs]
    of the pass that completes a chunk's gradients, in the order of that; `idle_from_us` [stages, configs] the end of
    the last pass.
    """

    last_start_us: Times
    last_end_us: Times
    idle_from_us: Times


Advance = Callable[[Times], None]
"""Takes a state [rows, configs] one round further, in place."""


def run_steady(
    advance_of: Callable[[NDArray[np.intp]], Advance], state: Times, rounds: int, *, history: int
) -> Times:
    """The state [rows, configs] after `rounds` rounds of `advance_of`. Rounds are maxima and sums of constants: once
    every row is later by d than p rounds before, it will be again after p more. Periods up to `history` are looked for.
    """
    result = np.empty_like(state)
    running = np.arange(state.shape[1])
    advance, past = advance_of(running), deque[Times](maxlen=history)
    look_at = 2
    for done in range(1, rounds + 1):
        past.append(state.copy())
        advance(state)
        if done != look_at or done == rounds:
            continue
        look_at = done + max(2, done // 2)
        found, final = _repeating(state, past, rounds - done)
        if found.any():
            result[:, running[found]] = final[:, found]
            running, state = running[~found], np.ascontiguousarray(state[:, ~found])
            if not running.size:
                return result
            advance, past = advance_of(running), deque((one[:, ~found] for one in past), maxlen=history)
    result[:, running] = state
    return result


def _repeating(state: Times, past: deque[Times], remaining: int) -> tuple[NDArray[np.bool_], Times]:
    """Which configurations repeat, and the states of those after `remaining` more rounds."""
    found, final = np.zeros(state.shape[1], dtype=np.bool_), np.empty_like(state)
    for period in range(1, len(past) + 1):
        before = past[-period]
        # Two rows exclude most configurations that do not repeat.
        if not ((state[0] - before[0] == state[-1] - before[-1]) & ~found).any():
            continue
        later = state - before
        new = (later == later[0]).all(axis=0) & ~found
        whole, rest = divmod(remaining, period)
        final[:, new] = past[rest - period][:, new] + (whole + 1) * later[:, new]
        found |= new
        if found.all():
            break
    return found, final
