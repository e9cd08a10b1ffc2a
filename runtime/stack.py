"""What a software stack does to sums of operators, fitted once and carried to any hardware: factors and their fit."""

import math
import os
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from kernelcast.runtime.dataclass import asdict, dataclass, field
from kernelcast.runtime.errors import DataError, error_context, shown_path, unknown
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.record import (
    FRACTION,
    HEX,
    ONE_LINE,
    WITH_DEFAULT,
    Check,
    Record,
    at_least,
    between,
    check_names,
    one_of,
    read_record,
)
from kernelcast.runtime.request.fields import LAYOUT, STACK
from kernelcast.runtime.shipped import STACKS
from kernelcast.runtime.small_file import read_toml, toml_document

NAMES = ("attention", "compute", "exposed_share")
"""The factors, in the order of `Stack.log_covariance`."""
LARGEST_FACTOR = 10.0
"""No time is corrected by more, up or down: beyond it, something else is wrong."""
DEFAULT_SHARE: float = LAYOUT["exposed_share"].default
OPTIONS = tuple(name for name in STACK if name not in NAMES)
"""What software does that is a choice, not a factor: options of a question that a stack may state."""

_IN_PROVENANCE = ("name", "software", "source", *NAMES, "residual", "steps", "error_before", "error_left_out")
_ATTENTION = frozenset(
    {
        "flash_attention",
        "flash_attention_float8",
        "batched_gemm",
        "softmax",
        "causal_mask_fill",
        "fused_causal_softmax",
    }
)
_LARGEST_LOG = math.log(LARGEST_FACTOR)
_NO_COVARIANCE = ((0.0,) * len(NAMES),) * len(NAMES)
_KERNELS = tuple(LAYOUT["attention_kernel"].kind.values[1:])

_Factor = Annotated[float, between(1 / LARGEST_FACTOR, LARGEST_FACTOR)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRuns(Record):
    """A file of measured steps that a stack was fitted to: its name and SHA-256, and what predicted its steps."""

    file: Annotated[str, ONE_LINE]
    digest: Annotated[str, HEX]
    asked: str
    bundle_digest: Annotated[str, HEX]
    fabric: str
    steps: Annotated[int, at_least(1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut(Record):
    """Mean absolute errors of a model's or layout's steps: without the stack, and by factors fitted to the others'."""

    name: str
    steps: Annotated[int, at_least(1)]
    error_before: Annotated[float, FRACTION]
    error_left_out: Annotated[float, FRACTION]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack(Record):
    """What software does to sums of operators that were measured alone.

    - `attention`, `compute`: factors of the time of attention's kernels, and of all else that computes.
    - `exposed_share`: exposed part of the time of overlapped collectives, unless a question gives it.
    - `log_covariance`: of the logarithms of the three; 0 where one is known.
    - `residual`: standard deviation of log(measured / predicted) that they leave; None: as without a stack.
    - `fixed`: which of them were set, not fitted.
    - `kernel`: that of fused attention in the steps that it was fitted to, None where that is not known.
    - `options`: what the software does of a question's `OPTIONS`, by name, where a question does not say it.
    - `runs`, `error_before`, `error_after`, `left_out`: what it was fitted to, and mean absolute errors of those steps
      without and with it; None and empty where nothing was fitted.

    DataError where a value is not allowed.
    """

    OPTIONAL: ClassVar[tuple[str, ...]] = WITH_DEFAULT

    name: Annotated[str, ONE_LINE]
    software: Annotated[str, ONE_LINE]
    source: Annotated[str, ONE_LINE]
    attention: _Factor = 1.0
    compute: _Factor = 1.0
    exposed_share: Annotated[float, between(0, 1)] = DEFAULT_SHARE
    residual: Annotated[float | None, between(0, _LARGEST_LOG)] = None
    log_covariance: tuple[tuple[float, ...], ...] = _NO_COVARIANCE
    fixed: Annotated[
        tuple[str, ...], Check(lambda names: set(names) <= set(NAMES), f"some of {', '.join(NAMES)}")
    ] = ()
    kernel: Annotated[str | None, one_of(_KERNELS)] = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    error_before: Annotated[float | None, FRACTION] = None
    error_after: Annotated[float | None, FRACTION] = None
    runs: tuple[FittedRuns, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    def __post_init__(self) -> None:
        Record.__post_init__(self)
        self.require("log_covariance", _is_covariance(self.log_covariance), _COVARIANCE)
        with error_context(at="options", kind=DataError):
            check_names(self.options, OPTIONS)
            for name, value in self.options.items():
                LAYOUT[name].check(value)

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

    @property
    def exposed_spread(self) -> tuple[float, ...]:
        """How the logarithm of the exposed share varies, by 3 standard normal numbers."""
        return self.spread[NAMES.index("exposed_share")]

    def factor_of(self, operator: str) -> float:
        """The factor of an operator's time; 1 for collectives, which belong to the fabric."""
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
        """A question's values, with the stack's exposed share and options for fields that they lack."""
        return {"exposed_share": self.exposed_share, **self.options, **values}

    def provenance(self) -> dict[str, Any]:
        """Plain values for an answer's provenance; `summary` is all of it as text."""
        return {**{name: getattr(self, name) for name in _IN_PROVENANCE}, "summary": str(self)}

    def __str__(self) -> str:
        words = (
            f"{self.name}: attention × {self.attention:.3f}, other computing × {self.compute:.3f}, "
            f"exposed share {self.exposed_share:.2f}"
        )
        if not self.runs or self.error_before is None:
            return f"{words}; not fitted"
        words += f"; by {self.steps} measured steps: mean error {self.error_before * 100:.1f} % before"
        left_out = self.error_left_out
        return words if left_out is None else f"{words}, {left_out * 100:.1f} % cross-validated"


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


_MAX_FILE_BYTES = 1 << 18
_TABLES = ("options", "runs", "left_out")


def find_stack(wanted: str | os.PathLike[str]) -> Stack:
    """A stack that ships, by name, or a TOML file; UsageError for an unknown name, errors as `read_stack`."""
    text = os.fspath(wanted)
    return read_stack(text) if "/" in text or text.endswith(".toml") else stack_named(text)


def shipped_stacks() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in STACKS.glob("*.toml")))


@cache
def stack_named(name: str) -> Stack:
    """The shipped stack of this name; else UsageError."""
    if name not in shipped_stacks():
        raise unknown("stack", name, shipped_stacks(), instead="the path of a .toml file works too")
    return read_stack(STACKS / f"{name}.toml")


def read_stack(path: str | os.PathLike[str]) -> Stack:
    """Read a stack's file; DataError for no TOML, or a field that is missing, unknown or wrong."""
    where = f"stack {shown_path(Path(path))}"
    values = read_toml(Path(path), where=where, most_bytes=_MAX_FILE_BYTES)
    with error_context(where):
        return read_record(Stack, values)


def stack_toml(stack: Stack) -> str:
    """The stack as a TOML file, with all that is known."""
    values = asdict(stack)
    return toml_document(values | {table: values[table] or None for table in _TABLES})
