"""Correction of a bundle by measured steps, a part of its manifest: a factor per class of operators
(docs/calibration.md).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol, Self

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import OPERATORS, OperatorClass
from kernelcast.runtime.record import (
    HEX,
    MOMENT,
    ONE_LINE,
    Check,
    Record,
    above,
    between,
    one_of,
    read_record,
    record_values,
)

TIMELINES = ("simulate", "closed-form")
CLASSES = tuple(OperatorClass)
LARGEST_FACTOR = 10.0
"""No class is corrected by more, up or down: beyond it, something else is wrong."""

_LARGEST_LOG = math.log(LARGEST_FACTOR)
_NORMAL_95 = 1.6448536269514722
"""95th percentile of the standard normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRun(Record):
    """A measured step that took part. Errors are predicted / measured - 1, as fractions.

    `error_before` is the bundle's own, `error_left_out` by a correction from the runs of other configurations alone
    (null where there are none), `error_after` by the whole correction.
    """

    label: Annotated[str, ONE_LINE]
    measured_s: Annotated[float, above(0)]
    error_before: Annotated[float, above(-1)]
    error_left_out: Annotated[float | None, above(-1)]
    error_after: Annotated[float, above(-1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(Record):
    """Factors by which the times of operators are multiplied, fitted for one `timeline`.

    - `source`, `source_digest`: where the measured steps come from, and the SHA-256 of what was read.
    - `measured_at`: moment of the newest of them, ISO 8601; 1970-01-01 where none says when it was made.
    - `parameters`: how many numbers were fitted; classes that share one have equal rows below.
    - `log_factors`: per class, in the order of `CLASSES`, the natural logarithm of its factor.
    - `log_spread`: per class a row of `parameters` numbers: with independent standard normal numbers z, the
      logarithms vary as log_factors + log_spread · z.
    - `residual`: standard deviation of log(measured / predicted) that no factor explains.
    - `prior`: standard deviation of a class's logarithm before any step was seen: the shrinkage towards 1.

    Raises:
        DataError: a value is not allowed.
    """

    timeline: Annotated[str, one_of(TIMELINES)]
    source: Annotated[str, ONE_LINE]
    source_digest: Annotated[str, HEX]
    measured_at: Annotated[str, MOMENT]
    kernelcast_version: str
    parameters: Annotated[int, between(1, len(CLASSES))]
    log_factors: tuple[float, ...]
    log_spread: tuple[tuple[float, ...], ...]
    residual: Annotated[float, between(0, _LARGEST_LOG)]
    prior: Annotated[
        float, Check(lambda value: 0 < value <= _LARGEST_LOG, f"above 0, up to {_LARGEST_LOG:.2f}")
    ]
    runs: Annotated[tuple[CalibrationRun, ...], Check(bool, "at least one")]

    def __post_init__(self) -> None:
        Record.__post_init__(self)
        factors, rows = self.log_factors, self.log_spread
        holds = len(factors) == len(CLASSES) and all(abs(value) <= _LARGEST_LOG for value in factors)
        self.require(
            "log_factors", holds, f"{len(CLASSES)} numbers, each a factor of {LARGEST_FACTOR:g} at most"
        )
        holds = len(rows) == len(CLASSES) and all(len(row) == self.parameters for row in rows)
        holds = holds and all(abs(value) <= _LARGEST_LOG for row in rows for value in row)
        size = f"{len(CLASSES)} rows of {self.parameters} numbers (parameters)"
        self.require("log_spread", holds, f"{size}, within ±{_LARGEST_LOG:.2f}")

    @property
    def factors(self) -> Mapping[OperatorClass, float]:
        """Factor of every class."""
        return {one: math.exp(value) for one, value in zip(CLASSES, self.log_factors, strict=True)}

    @property
    def intervals(self) -> Mapping[OperatorClass, tuple[float, float]]:
        """5th and 95th percentile of every class's factor."""
        found = {}
        for one, value, row in zip(CLASSES, self.log_factors, self.log_spread, strict=True):
            half_width = _NORMAL_95 * math.hypot(*row)
            found[one] = (math.exp(value - half_width), math.exp(value + half_width))
        return found

    def log_factor(self, operator: str) -> float:
        """Natural logarithm of the factor of an operator's class."""
        return self.log_factors[CLASSES.index(OPERATORS[operator].operator_class)]

    def log_spread_of(self, operator: str) -> tuple[float, ...]:
        """The row of `log_spread` of an operator's class."""
        return self.log_spread[CLASSES.index(OPERATORS[operator].operator_class)]

    @property
    def mean_error_before(self) -> float:
        """Mean absolute error of the runs without the correction."""
        return sum(abs(run.error_before) for run in self.runs) / len(self.runs)

    @property
    def mean_error_left_out(self) -> float | None:
        """Mean absolute error of every run by a correction from other configurations; None with one."""
        errors = [run.error_left_out for run in self.runs if run.error_left_out is not None]
        return sum(map(abs, errors)) / len(errors) if errors else None

    @property
    def helps(self) -> bool | None:
        """Whether runs that were left out are predicted better with than without; None with one configuration."""
        left_out = self.mean_error_left_out
        return None if left_out is None else left_out < self.mean_error_before

    def __str__(self) -> str:
        alike: dict[float, list[str]] = {}
        for one, factor in self.factors.items():
            alike.setdefault(factor, []).append(one.value)
        factors = "; ".join(f"{', '.join(names)} × {factor:.3f}" for factor, names in alike.items())
        runs = f"{len(self.runs)} measured step{'' if len(self.runs) == 1 else 's'} of {self.source}"
        words = f"{factors}; for timeline {self.timeline}, by {runs}"
        if self.mean_error_left_out is None:
            return words
        return (
            f"{words}: mean error {self.mean_error_before * 100:.1f} % before, "
            f"{self.mean_error_left_out * 100:.1f} % cross-validated"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in manifest.json."""
        return {"classes": [one.value for one in CLASSES], **record_values(self)}

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Inverse of `to_dict`.

        Raises:
            DataError: a field is missing, unknown, of another type or out of bounds.
        """
        if isinstance(values, dict):
            classes, expected = values.get("classes"), [one.value for one in CLASSES]
            if classes != expected:
                own = f"this version's: {', '.join(expected)}"
                raise DataError(field="classes", found=classes, expected=own)
            values = {name: value for name, value in values.items() if name != "classes"}
        return read_record(cls, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationUse:
    """The calibration of an answer's bundle: whether it was applied, and if not, why.

    `factors` are the bundle's, whether applied or not; errors are means over its runs; `summary` describes all in
    words.
    """

    applied: bool
    reason: str
    timeline: str
    source: str
    source_digest: str
    runs: int
    factors: dict[str, float]
    error_before: float
    error_left_out: float | None
    summary: str

    @classmethod
    def of(cls, calibration: Calibration, *, timeline: str, wanted: bool, instead: str = "") -> Self:
        """For a question with `timeline`; not `wanted`: switched off by the caller; `instead`: what takes its place."""
        reason = "" if calibration.timeline == timeline else f"fitted for timeline {calibration.timeline}"
        if not wanted or instead:
            reason = f"{instead} takes its place" if wanted else "switched off"
        return cls(
            applied=not reason,
            reason=reason,
            timeline=calibration.timeline,
            source=calibration.source,
            source_digest=calibration.source_digest,
            runs=len(calibration.runs),
            factors={one.value: factor for one, factor in calibration.factors.items()},
            error_before=calibration.mean_error_before,
            error_left_out=calibration.mean_error_left_out,
            summary=f"NOT applied, {reason}: {calibration}" if reason else str(calibration),
        )


class Factors(Protocol):
    """A correction of operators' times: a bundle's calibration, or what a software stack does to sums of operators."""

    @property
    def residual(self) -> float | None:
        """Standard deviation of log(measured step / predicted step) that the factors leave; None: as without any."""

    def log_factor(self, operator: str) -> float:
        """Natural logarithm of the factor of an operator's time."""

    def log_spread_of(self, operator: str) -> Sequence[float]:
        """With independent standard normal z, the logarithm varies as log_factor + log_spread · z."""


def factor_of(factors: Factors | None, operator: str) -> float:
    """The factor of an operator's times; 1 without a correction."""
    return 1.0 if factors is None else math.exp(factors.log_factor(operator))
