"""A regressor of one device that answers for another: times are scaled by the roofline of both.

time(target) = time(origin) · roofline(target) / roofline(origin) · exp(correction), where the correction is a line in
the logarithms of the features that was fitted to the few points that were measured on the target, if any.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from kernelcast.runtime.bundle.field_reader import FieldReader, require
from kernelcast.runtime.hardware.roofline import Rates, is_rate
from kernelcast.runtime.operators import OPERATORS, Key

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MOST_LOG = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """`offset` + Σ `slopes`[i] · (log x[i] − `center`[i]), with log x held inside `low` to `high`.

    `points` are those of the target that it was fitted to.
    """

    points: int
    offset: float
    slopes: tuple[float, ...]
    center: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        require(self.points > 0, "correction", "points", self.points, "at least 1")
        for name in ("slopes", "center", "low", "high"):
            values = getattr(self, name)
            require(
                len(values) == len(self.slopes) and all(abs(value) <= _MOST_LOG for value in values),
                "correction",
                name,
                values,
                f"a number per feature, at most {_MOST_LOG:g}",
            )
        require(abs(self.offset) <= _MOST_LOG, "correction", "offset", self.offset, f"at most {_MOST_LOG:g}")

    def log_factors(self, vectors: "NDArray[np.float64]") -> "NDArray[np.float64]":
        """The correction of log(time) at each workload, float64 [vectors]."""
        import numpy as np  # only here: reading a bundle does not need it

        logs = np.clip(np.log(np.maximum(vectors, 1.0)), self.low, self.high)
        found: NDArray[np.float64] = self.offset + (logs - np.array(self.center)) @ np.array(self.slopes)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in manifest.json."""
        logs = {name: list(getattr(self, name)) for name in ("slopes", "center", "low", "high")}
        return {"points": self.points, "offset": self.offset, **logs}

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Inverse of `to_dict`.

        Raises:
            DataError: a field is missing, unknown, ill-typed or out of bounds.
        """
        read = FieldReader("correction", values, ["points", "offset", "slopes", "center", "low", "high"])
        return cls(
            points=read.integer("points"),
            offset=read.number("offset"),
            slopes=read.numbers("slopes"),
            center=read.numbers("center"),
            low=read.numbers("low"),
            high=read.numbers("high"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """From the device that was measured, `origin`, to the one that answers are for, `target`.

    `log_half_width` is what 90 % of such transfers were within, in log(time).

    Raises:
        DataError: a value is outside what is allowed.
    """

    origin: Rates
    target: Rates
    log_half_width: float
    correction: Correction | None = None

    def __post_init__(self) -> None:
        for rates in (self.origin, self.target):
            for name in ("flops_per_s", "bytes_per_s"):
                require(is_rate(getattr(rates, name)), "transfer", name, getattr(rates, name), "above 0")
        width = self.log_half_width
        require(0 <= width <= _MOST_LOG, "transfer", "log_half_width", width, f"0 to {_MOST_LOG:g}")

    def to(self, target: Rates, log_half_width: float) -> Self:
        """The same regressor carried on to a further device; rooflines between them cancel."""
        return replace(self, target=target, log_half_width=log_half_width)

    def factors(
        self, key: Key, vectors: Sequence[Sequence[float]], element_bytes: int
    ) -> "NDArray[np.float64]":
        """What the origin's times are multiplied by, float64 [vectors]."""
        import numpy as np

        name, direction = key
        ratio = self.target.roofline_us(OPERATORS[name], direction, vectors, element_bytes)
        ratio = ratio / self.origin.roofline_us(OPERATORS[name], direction, vectors, element_bytes)
        if self.correction is None:
            return ratio
        found: NDArray[np.float64] = ratio * np.exp(self.correction.log_factors(np.array(vectors, float)))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in manifest.json."""
        return {
            "origin": self.origin.to_dict(),
            "target": self.target.to_dict(),
            "log_half_width": self.log_half_width,
            "correction": None if self.correction is None else self.correction.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Inverse of `to_dict`.

        Raises:
            DataError: a field is missing, unknown, ill-typed or out of bounds.
        """
        read = FieldReader("transfer", values, ["origin", "target", "log_half_width", "correction"])
        correction = read.value("correction")
        return cls(
            origin=_rates(read.value("origin")),
            target=_rates(read.value("target")),
            log_half_width=read.number("log_half_width"),
            correction=None if correction is None else Correction.from_dict(correction),
        )


def _rates(values: object) -> Rates:
    read = FieldReader("transfer", values, ["device", "flops_per_s", "bytes_per_s"])
    return Rates(
        device=read.text("device"),
        flops_per_s=read.number("flops_per_s"),
        bytes_per_s=read.number("bytes_per_s"),
    )
