"""A regressor of one device that answers for another: times are scaled by the roofline of both.

time(target) = time(origin) · roofline(target) / roofline(origin) · exp(correction), where the correction was fitted to
the few points that were measured on the target, if any: a Gaussian process on their log error.

The error of log(time) is assumed similar for similar workloads (`Likeness`): by the predicted time, by how far
the prediction lies above the roofline, and by the features. Far from all points the correction is their mean offset.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Self, TypeAlias

from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.hardware.devices import devices
from kernelcast.runtime.hardware.limits import LAUNCH_FLOOR_US, Rates
from kernelcast.runtime.operators import OPERATORS, Key
from kernelcast.runtime.record import Check, Record, between

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]

_MOST_LOG = 100.0
_MOST_ADDED = 10.0
_MOST_WEIGHT = 1e4
_MOST_POINTS = 10_000
TIME, EFFICIENCY, FEATURES = 0, 1, 2
"""Columns of a position: log of the time in µs, log(time / roofline), and from there logs of the features."""

_Variance = Annotated[float, between(0, _MOST_LOG)]
_Scale = Annotated[float, Check(lambda value: 0 < value <= _MOST_LOG, f"above 0, up to {_MOST_LOG:g}")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness(Record):
    """Covariance of the errors of log(time) of two workloads: a sum of variances, each times a similarity.

    - `offset`: equal for all workloads; a kernel that is slower or faster throughout;
    - `time`: Matérn 3/2 in log(time), of `time_scale`: caches and launches matter to short calls alone;
    - `efficiency`: a line in log(time / roofline): how far a slow kernel of one device is slow on the other;
    - `shape`: Matérn 3/2 in the logs of all features together, of `shape_scale`;
    - `value`: exponential in the log of each feature, of `value_scale`: tiles, kernels chosen by a size.

    `noise` is the standard deviation of what has no pattern: repetitions, and tiles of both devices. Scales are in
    natural logarithms. The defaults were chosen once for A100 → GH200 and kept for all others (docs/few-points.md).
    """

    offset: _Variance = 1.0
    time: _Variance = 0.3
    time_scale: _Scale = 2.0
    efficiency: _Variance = 1.0
    shape: _Variance = 0.1
    shape_scale: _Scale = 3.0
    value: _Variance = 0.003
    value_scale: _Scale = 0.3
    noise: _Scale = 0.06

    def covariance(self, some: "Array", others: "Array") -> "Array":
        """Covariance of positions [n, 2 + features] with others [m, 2 + features], float64 [n, m]; without noise."""
        import numpy as np  # only here: reading a bundle does not need it

        found: Array = self.offset + self.efficiency * np.outer(some[:, EFFICIENCY], others[:, EFFICIENCY])
        found += self.time * _matern(some[:, :EFFICIENCY], others[:, :EFFICIENCY], self.time_scale)
        found += self.shape * _matern(some[:, FEATURES:], others[:, FEATURES:], self.shape_scale)
        for own, other in zip(some.T[FEATURES:], others.T[FEATURES:], strict=True):
            found += self.value * np.exp(-np.abs(own[:, None] - other) / self.value_scale)
        return found


LIKENESS = Likeness()
"""Likeness of every correction fitted from now on."""


def positions(
    times_us: "Array", roofline_us: "Array", vectors: "Sequence[Sequence[float]] | Array"
) -> "Array":
    """Where workloads lie, float64 [n, 2 + features], by their predicted times and rooflines in µs, [n] each."""
    import numpy as np

    logs = np.log(np.maximum(np.array(vectors, dtype=np.float64), 1.0))
    return np.column_stack([np.log(times_us), np.log(times_us / roofline_us), logs])


def centred(places: "Array", knots: "Array") -> "Array":
    """Positions whose efficiency is relative to the knots' mean, where the linear term is 0."""
    found = places.copy()
    found[:, EFFICIENCY] -= knots[:, EFFICIENCY].mean()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction(Record):
    """Σ `weights`[i] · covariance with `knots`[i], the positions [points, 2 + features] of what was measured.

    Efficiencies are clipped to the range of the knots, so nothing is extrapolated. `earlier` is the correction that the
    prediction already had, if any.

    Raises:
        DataError: a value is not allowed.
    """

    knots: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    likeness: Likeness = LIKENESS
    earlier: "Correction | None" = None

    def __post_init__(self) -> None:
        weights, values = self.weights, [value for knot in self.knots for value in knot]
        self.require("weights", 0 < len(weights) <= _MOST_POINTS, f"1 to {_MOST_POINTS} numbers")
        alike = len(self.knots) == len(weights) and len({len(knot) for knot in self.knots}) == 1
        self.require("knots", alike, f"{len(weights)} lists of one length, one per weight")
        self.require("knots", all(abs(one) <= _MOST_LOG for one in values), f"numbers up to ±{_MOST_LOG:g}")
        bounded = all(abs(weight) <= _MOST_WEIGHT for weight in weights)
        self.require("weights", bounded, f"numbers up to ±{_MOST_WEIGHT:g}")

    @property
    def points(self) -> int:
        """How many workloads were measured."""
        return len(self.weights)

    def log_factors(
        self, times_us: "Array", roofline_us: "Array", vectors: "Sequence[Sequence[float]] | Array"
    ) -> "Array":
        """What is added to log(time) at each workload, float64 [n], given predicted times and rooflines in µs."""
        import numpy as np

        before = np.zeros(len(times_us))
        if self.earlier is not None:
            before = self.earlier.log_factors(times_us, roofline_us, vectors)
        asked, knots = positions(times_us * np.exp(before), roofline_us, vectors), np.array(self.knots)
        known = knots[:, EFFICIENCY]
        asked[:, EFFICIENCY] = np.clip(asked[:, EFFICIENCY], known.min(), known.max())
        added = self.likeness.covariance(centred(asked, knots), centred(knots, knots)) @ np.array(
            self.weights
        )
        found: Array = before + np.clip(added, -_MOST_ADDED, _MOST_ADDED)
        return found


def _matern(some: "Array", others: "Array", scale: float) -> "Array":
    """Matérn 3/2 of the distances between rows, [n, m]."""
    import numpy as np

    squares = ((some[:, None, :] - others[None, :, :]) ** 2).sum(axis=-1)
    distances = np.sqrt(3.0 * squares) / scale
    found: Array = (1.0 + distances) * np.exp(-distances)
    return found


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MOST_LOG_WIDTH = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Record):
    """From the device that was measured, `origin`, to the one that answers are for, `target`.

    `log_half_width` is what 90 % of such transfers were within, in log(time).

    Raises:
        DataError: a value is not allowed.
    """

    origin: Rates
    target: Rates
    log_half_width: Annotated[float, between(0, _MOST_LOG_WIDTH)]
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
