"""Input of a simulated pipeline: the time of every pass, transfer and update."""

from typing import Self

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.pipeline.overlap import Overlap

Times = NDArray[np.float64]

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
      (`passes.is_pair`); None for no saving.

    Per update, arrays [configs, stages]: `all_reduce_us` of a stage's gradients, `update_us` of its optimizer with the
    all-gather. `overlap` if collectives of the update overlap with passes.

    Raises:
        UsageError: shapes that do not go together, or a time that is negative or not finite.
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
        """The same times, rounded so that no sum on a path of `passes` passes of each kind is ever rounded.

        Every configuration gets its own grid, a power of two below 2⁻⁵² of the longest possible path. Sums on it are
        exact in float64 in any order, so exact repetitions can be detected, and all ways to evaluate a schedule agree
        to the bit. A step's time changes by at most half a grid step per piece on its path.
        """
        longest = np.zeros(self.configs)
        # The last chunk sends nothing forward and the first one nothing backward, whatever stands there.
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
    """When stages finish, in µs from the step's start.

    `last_start_us`, `last_end_us` [virtual stages, stages, configs]: the pass that completes a chunk's
    gradients, chunks in the order in which that happens (the last of the model first); `idle_from_us`
    [stages, configs]: the end of the stage's last pass.
    """

    last_start_us: Times
    last_end_us: Times
    idle_from_us: Times
