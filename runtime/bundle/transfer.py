"""A regressor of one device that answers for another: times are scaled by the roofline of both.

time(target) = time(origin) · roofline(target) / roofline(origin) · exp(correction), where the correction was fitted to
the few points that were measured on the target, if any (correction.py).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Self

from kernelcast.runtime.bundle.correction import Correction
from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.hardware.devices import devices
from kernelcast.runtime.hardware.roofline import LAUNCH_FLOOR_US, Rates
from kernelcast.runtime.operators import OPERATORS, Key
from kernelcast.runtime.record import Record, between

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MOST_LOG = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Record):
    """From the device that was measured, `origin`, to the one that answers are for, `target`.

    `log_half_width` is what 90 % of such transfers were within, in log(time).

    Raises:
        DataError: a value is outside what is allowed.
    """

    origin: Rates
    target: Rates
    log_half_width: Annotated[float, between(0, _MOST_LOG)]
    correction: Correction | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether another device was measured; else points of the same device correct what others measured on it."""
        return self.origin.device != self.target.device

    def to(self, target: Rates, log_half_width: float) -> Self:
        """The same regressor carried on to a further device; rooflines between them cancel."""
        return replace(self, target=target, log_half_width=log_half_width)

    def factors(
        self, key: Key, vectors: Sequence[Sequence[float]], element_bytes: int
    ) -> "NDArray[np.float64]":
        """What the origin's times are multiplied by before any correction, float64 [vectors]."""
        name, direction = key
        there, here = (
            rates.roofline_us(OPERATORS[name], direction, vectors, element_bytes)
            for rates in (self.origin, self.target)
        )
        return here / there

    def carried_us(
        self,
        key: Key,
        vectors: Sequence[Sequence[float]],
        times_us: "NDArray[np.float64]",
        element_bytes: int,
    ) -> "NDArray[np.float64]":
        """Times on the target in µs, float64 [vectors], from those on the origin."""
        import numpy as np  # only here: reading a bundle does not need it

        name, direction = key
        carried_us = times_us * self.factors(key, vectors, element_bytes)
        if self.correction is None:
            return carried_us
        roofline_us = self.target.roofline_us(OPERATORS[name], direction, vectors, element_bytes)
        found: NDArray[np.float64] = carried_us * np.exp(
            self.correction.log_factors(carried_us, roofline_us, vectors)
        )
        return found

    def log_half_widths(
        self, key: Key, vectors: Sequence[Sequence[float]], element_bytes: int
    ) -> tuple["NDArray[np.float64]", "NDArray[np.float64]"]:
        """Half-widths of the 90 % interval below and above `carried_us`, in log(time), two float64 [vectors].

        `log_half_width`; for one chip with other memory at most the span from memory without effect to memory traffic
        that does not overlap with compute at all (the roofline is full overlap).
        """
        import numpy as np

        width = np.full(len(vectors), self.log_half_width)
        one, other = devices().get(self.origin.device), devices().get(self.target.device)
        if self.correction is not None or one is None or other is None or not one.is_chip_of(other):
            return width, width
        name, direction = key
        there, here = (
            LAUNCH_FLOOR_US + np.add(*rates.parts_us(OPERATORS[name], direction, vectors, element_bytes))
            for rates in (self.origin, self.target)
        )
        carried = self.factors(key, vectors, element_bytes)
        ends = np.stack([np.ones(len(vectors)), here / there, carried]) / carried
        below, above = -np.log(ends.min(axis=0)), np.log(ends.max(axis=0))
        return np.minimum(width, below), np.minimum(width, above)
