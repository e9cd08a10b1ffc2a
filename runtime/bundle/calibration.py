"""Correction of a bundle by measured steps: a factor per class of operators, and how sure it is.

It is a part of the manifest (`kernelcast calibrate` writes it); the models stay as they were trained. Standard library
only. docs/calibration.md explains how the factors are found.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from kernelcast.runtime.bundle.field_reader import FieldReader, is_hex, is_moment, require
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import OPERATORS, OperatorClass

TIMELINES = ("simulate", "closed-form")
CLASSES = tuple(OperatorClass)
LARGEST_FACTOR = 10.0
"""No class is corrected by more, up or down: beyond it, something else is wrong."""

_LARGEST_LOG = math.log(LARGEST_FACTOR)
_NORMAL_95 = 1.6448536269514722
"""95th percentile of the standard normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRun:
    """A measured step that took part. Errors are predicted / measured - 1, as fractions.

    `error_before` is the bundle's own, `error_left_out` by a correction from the runs of other configurations alone
    (null where there are none), `error_after` by the whole correction.
    """

    label: str
    measured_s: float
    error_before: float
    error_left_out: float | None
    error_after: float

    def __post_init__(self) -> None:
        where = "calibration run"
        require(
            bool(self.label) and self.label.isprintable(), where, "label", self.label, "a text on one line"
        )
        holds = 0 < self.measured_s < math.inf
        require(holds, where, "measured_s", self.measured_s, "seconds above 0")
        for name in ("error_before", "error_left_out", "error_after"):
            value = getattr(self, name)
            holds = (value is None and name == "error_left_out") or (
                value is not None and -1 < value < math.inf
            )
            require(holds, where, name, value, "a fraction above -1")

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Inverse of `dataclasses.asdict`.

        Raises:
            DataError: a field is missing, unknown, ill-typed or out of bounds.
        """
        read = FieldReader("calibration run", values, [f.name for f in fields(cls)])
        return cls(
            label=read.text("label"),
            measured_s=read.number("measured_s"),
            error_before=read.number("error_before"),
            error_left_out=read.number_or_null("error_left_out"),
            error_after=read.number("error_after"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
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
        DataError: a value is outside what is allowed.
    """

    timeline: str
    source: str
    source_digest: str
    measured_at: str
    kernelcast_version: str
    parameters: int
    log_factors: tuple[float, ...]
    log_spread: tuple[tuple[float, ...], ...]
    residual: float
    prior: float
    runs: tuple[CalibrationRun, ...]

    def __post_init__(self) -> None:
        rows = self.log_spread
        for holds, name, expected in (
            (self.timeline in TIMELINES, "timeline", " or ".join(TIMELINES)),
            (bool(self.source) and self.source.isprintable(), "source", "a text on one line"),
            (is_hex(self.source_digest), "source_digest", "hex digits"),
            (is_moment(self.measured_at), "measured_at", "ISO 8601 with a time zone"),
            (1 <= self.parameters <= len(CLASSES), "parameters", f"1 to {len(CLASSES)}"),
            (
                len(self.log_factors) == len(CLASSES)
                and all(abs(value) <= _LARGEST_LOG for value in self.log_factors),
                "log_factors",
                f"{len(CLASSES)} numbers, each a factor of {LARGEST_FACTOR:g} at most",
            ),
            (
                len(rows) == len(CLASSES)
                and all(len(row) == self.parameters for row in rows)
                and all(abs(value) <= _LARGEST_LOG for row in rows for value in row),
                "log_spread",
                f"{len(CLASSES)} rows of as many numbers as parameters, within ±{_LARGEST_LOG:.2f}",
            ),
            (0 <= self.residual <= _LARGEST_LOG, "residual", f"0 to {_LARGEST_LOG:.2f}"),
            (0 < self.prior <= _LARGEST_LOG, "prior", f"above 0, up to {_LARGEST_LOG:.2f}"),
            (bool(self.runs), "runs", "at least one"),
        ):
            require(holds, "calibration", name, getattr(self, name), expected)

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
            f"{words}: mean error {self.mean_error_before:.1%} before, "
            f"{self.mean_error_left_out:.1%} for steps left out"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in manifest.json."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["log_factors"] = list(self.log_factors)
        values["log_spread"] = [list(row) for row in self.log_spread]
        values["runs"] = [asdict(run) for run in self.runs]
        return {"classes": [one.value for one in CLASSES], **values}

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Inverse of `to_dict`.

        Raises:
            DataError: a field is missing, unknown, ill-typed or out of bounds.
        """
        read = FieldReader("calibration", values, ["classes", *(f.name for f in fields(cls))])
        expected = [one.value for one in CLASSES]
        found = read.texts("classes")
        require(found == expected, "calibration", "classes", found, f"this version's: {', '.join(expected)}")
        return cls(
            timeline=read.text("timeline"),
            source=read.text("source"),
            source_digest=read.text("source_digest"),
            measured_at=read.text("measured_at"),
            kernelcast_version=read.text("kernelcast_version"),
            parameters=read.integer("parameters"),
            log_factors=read.numbers("log_factors"),
            log_spread=_rows(read.items("log_spread")),
            residual=read.number("residual"),
            prior=read.number("prior"),
            runs=tuple(CalibrationRun.from_dict(run) for run in read.items("runs")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationUse:
    """The calibration of an answer's bundle: whether it was applied, and if not, why.

    `factors` are those of the bundle, whether applied or not; errors are means over its runs, `summary` is
    all of it in words.
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


def _rows(values: list[Any]) -> tuple[tuple[float, ...], ...]:
    for row in values:
        if type(row) is not list or not all(type(value) in (int, float) for value in row):
            raise DataError(f"calibration: log_spread holds {row!r:.80}, expected rows of numbers")
    try:
        return tuple(tuple(map(float, row)) for row in values)
    except OverflowError:
        raise DataError("calibration: log_spread holds a number too large for a float") from None
