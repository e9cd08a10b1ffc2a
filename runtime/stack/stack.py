"""What a software stack does to sums of operators: three factors, how sure they are, and what they were fitted to."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from kernelcast.runtime.bundle.checks import is_hex, require
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.record import Record
from kernelcast.runtime.request.fields import LAYOUT, STACK

NAMES = ("attention", "compute", "exposed_share")
"""The factors, in the order of `Stack.log_covariance`."""
LARGEST_FACTOR = 10.0
"""No time is corrected by more, up or down: beyond it, something else is wrong."""
DEFAULT_SHARE: float = LAYOUT["exposed_share"].default
OPTIONS = tuple(name for name in STACK if name not in NAMES)
"""What software does that is a choice, not a factor: options of a question that a stack may state."""

_SAID = ("name", "software", "source", *NAMES, "residual", "steps", "error_before", "error_left_out")
_ATTENTION = frozenset(
    {"flash_attention", "batched_gemm", "softmax", "causal_mask_fill", "fused_causal_softmax"}
)
_LARGEST_LOG = math.log(LARGEST_FACTOR)
_NO_COVARIANCE = ((0.0,) * len(NAMES),) * len(NAMES)
_ONE_LINE = "a text on one line"


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRuns(Record):
    """A file of measured steps that a stack was fitted to: its name and SHA-256, and what predicted its steps."""

    file: str
    digest: str
    asked: str
    bundle_digest: str
    fabric: str
    steps: int

    def __post_init__(self) -> None:
        where = f"runs {self.file!r:.80}"
        require(self.file.isprintable() and bool(self.file), where, "file", self.file, _ONE_LINE)
        for name in ("digest", "bundle_digest"):
            require(is_hex(getattr(self, name)), where, name, getattr(self, name), "hex digits")
        require(self.steps >= 1, where, "steps", self.steps, "at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut(Record):
    """Mean absolute errors of a model's steps (or a layout's, of one model alone): without the stack, and with factors
    that were fitted to the others' steps only.
    """

    name: str
    steps: int
    error_before: float
    error_left_out: float

    def __post_init__(self) -> None:
        where = f"left_out {self.name!r:.80}"
        require(self.steps >= 1, where, "steps", self.steps, "at least 1")
        for name in ("error_before", "error_left_out"):
            value = getattr(self, name)
            require(0 <= value < math.inf, where, name, value, "a fraction from 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack(Record):
    """What software does to sums of operators that were measured alone.

    - `attention`, `compute`: factors of the time of attention's kernels, and of all else that computes.
    - `exposed_share`: part of the time of collectives beside computing that adds to it, where a question does not say.
    - `log_covariance`: of the logarithms of the three; 0 where one is not fitted but known.
    - `residual`: standard deviation of log(measured / predicted) that they leave; None: as without a stack.
    - `fixed`: which of them were set, not fitted.
    - `kernel`: that of fused attention in the steps that it was fitted to, None where that is not known.
    - `options`: what the software does of a question's `OPTIONS`, by name, where a question does not say it.
    - `runs`, `error_before`, `error_after`, `left_out`: what it was fitted to, and mean absolute errors of those steps
      without and with it; None and empty where nothing was fitted.

    Raises:
        DataError: a value is outside what is allowed.
    """

    OPTIONAL: ClassVar[tuple[str, ...]] = (
        *NAMES,
        *(
            "residual",
            "log_covariance",
            "fixed",
            "kernel",
            "options",
            "error_before",
            "error_after",
            "runs",
            "left_out",
        ),
    )

    name: str
    software: str
    source: str
    attention: float = 1.0
    compute: float = 1.0
    exposed_share: float = DEFAULT_SHARE
    residual: float | None = None
    log_covariance: tuple[tuple[float, ...], ...] = _NO_COVARIANCE
    fixed: tuple[str, ...] = ()
    kernel: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    error_before: float | None = None
    error_after: float | None = None
    runs: tuple[FittedRuns, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    def __post_init__(self) -> None:
        where = f"stack {self.name!r:.80}"
        for name in ("name", "software", "source"):
            value = getattr(self, name)
            require(bool(value) and value.isprintable(), where, name, value, _ONE_LINE)
        kernels = LAYOUT["attention_kernel"].kind.values[1:]
        known = self.kernel is None or self.kernel in kernels
        require(known, where, "kernel", self.kernel, f"one of {', '.join(kernels)}")
        for name in ("attention", "compute"):
            value = getattr(self, name)
            within = 1 / LARGEST_FACTOR <= value <= LARGEST_FACTOR
            require(within, where, name, value, f"{1 / LARGEST_FACTOR:g} to {LARGEST_FACTOR:g}")
        require(0 <= self.exposed_share <= 1, where, "exposed_share", self.exposed_share, "0 to 1")
        residual = self.residual
        within = residual is None or 0 <= residual <= _LARGEST_LOG
        require(within, where, "residual", residual, f"0 to {_LARGEST_LOG:.2f}")
        require(
            set(self.fixed) <= set(NAMES), where, "fixed", list(self.fixed), f"some of {', '.join(NAMES)}"
        )
        require(
            _is_covariance(self.log_covariance), where, "log_covariance", self.log_covariance, _COVARIANCE
        )
        for name, value in self.options.items():
            require(name in OPTIONS, where, "options", name, f"some of {', '.join(OPTIONS)}")
            try:
                LAYOUT[name].check(value)
            except UsageError as error:
                raise DataError(f"{where}: options.{error}") from error
        for name in ("error_before", "error_after"):
            value = getattr(self, name)
            require(value is None or 0 <= value < math.inf, where, name, value, "a fraction from 0")

    @property
    def steps(self) -> int:
        """Measured steps that it was fitted to."""
        return sum(one.steps for one in self.runs)

    @property
    def error_left_out(self) -> float | None:
        """Mean absolute error of all steps, each predicted without its model's; None where nothing was left out."""
        steps = sum(one.steps for one in self.left_out)
        return sum(one.steps * one.error_left_out for one in self.left_out) / steps if steps else None

    @property
    def spread(self) -> tuple[tuple[float, ...], ...]:
        """Per factor a row of 3 numbers: with independent standard normal z, its logarithm varies as spread · z."""
        return _root(self.log_covariance)

    def factor_of(self, operator: str) -> float:
        """By what an operator's time is multiplied; 1 of collectives, which belong to the fabric."""
        row = factor_index(operator)
        return 1.0 if row is None else float(getattr(self, NAMES[row]))

    def log_factor(self, operator: str) -> float:
        """Natural logarithm of `factor_of`."""
        return math.log(self.factor_of(operator))

    def log_spread_of(self, operator: str) -> tuple[float, ...]:
        """How the logarithm of an operator's factor varies, by 3 standard normal numbers."""
        row = factor_index(operator)
        return (0.0,) * len(NAMES) if row is None else self.spread[row]

    def fill(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """A question's values, with the stack's exposed share and options where they do not say them."""
        return {"exposed_share": self.exposed_share, **self.options, **values}

    def said(self) -> dict[str, Any]:
        """What an answer's provenance says about it: plain values, and all of it in words as `summary`."""
        return {**{name: getattr(self, name) for name in _SAID}, "summary": str(self)}

    def __str__(self) -> str:
        words = (
            f"{self.name}: attention × {self.attention:.3f}, other computing × {self.compute:.3f}, "
            f"exposed share {self.exposed_share:.2f}"
        )
        if not self.runs or self.error_before is None:
            return f"{words}; not fitted"
        words += f"; by {self.steps} measured steps: mean error {self.error_before * 100:.1f} % before"
        left_out = self.error_left_out
        return words if left_out is None else f"{words}, {left_out * 100:.1f} % left out"


def factor_index(operator: str) -> int | None:
    """Which of `NAMES` multiplies an operator's time; None of a collective."""
    if OPERATORS[operator].is_collective:
        return None
    return NAMES.index("attention" if operator in _ATTENTION else "compute")


@lru_cache(maxsize=64)
def _root(log_covariance: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
    """Lower triangle whose product with its transpose is the covariance; rows of 0 where that is 0."""
    covariance = np.array(log_covariance)
    rows = np.zeros_like(covariance)
    known = np.flatnonzero(np.diag(covariance) > 0)
    if len(known):
        rows[np.ix_(known, known)] = np.linalg.cholesky(covariance[np.ix_(known, known)])
    return tuple(map(tuple, rows.tolist()))


_COVARIANCE = "3 rows of 3 numbers, symmetric and positive where they are not 0"


def _is_covariance(rows: tuple[tuple[float, ...], ...]) -> bool:
    count = len(NAMES)
    if len(rows) != count or any(len(row) != count for row in rows):
        return False
    if not all(abs(value) <= _LARGEST_LOG**2 for row in rows for value in row):
        return False
    values = np.array(rows)
    known = values[np.diag(values) > 0][:, np.diag(values) > 0]
    if not np.array_equal(values, values.T) or not np.allclose(np.abs(values).sum(), np.abs(known).sum()):
        return False
    return known.size == 0 or bool(np.linalg.eigvalsh(known).min() > 0)
