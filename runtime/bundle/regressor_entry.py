"""The manifest's entry of one regressor: what it answers, how it was fitted, how far it may be trusted.

Its 90 % interval is a factor up and down from the predicted time, and wider outside the measured range, as held-out
distances showed.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self

from kernelcast.runtime.bundle.transfer import FEATURES, Transfer
from kernelcast.runtime.dataclass import dataclass, field
from kernelcast.runtime.errors import DataError, error_context
from kernelcast.runtime.hardware.devices import Load
from kernelcast.runtime.operators import OPERATORS, Direction, Key, Operator
from kernelcast.runtime.operators import operator as operator_named
from kernelcast.runtime.record import (
    FRACTION,
    HEX,
    NAME,
    Check,
    Record,
    at_least,
    between,
    one_of,
    read_record,
    record_values,
)

LEVEL = 0.9
"""The share of measured times that an interval is made to hold."""

METHODS = ("cross_conformal", "largest_error")
"""How half-widths were found: a quantile of the errors on held-out rows, or, with few rows, beyond the largest one."""

GROUPINGS = ("all", "size", "layout")
"""What half-widths depend on: nothing, the product of the features, or the layout (nodes, GPUs per node)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval(Record):
    """Low and high are the time divided and multiplied by exp(half-width); one half-width per group.

    With `by` "size" the groups lie between `size_bounds`, increasing products of the features: group i holds products
    above bound i − 1, up to bound i. With "layout" they are `layouts`, [nodes, GPUs per node], and last every other
    layout. "all" has one group.

    Raises:
        DataError: a value is not allowed.
    """

    method: Annotated[str, one_of(METHODS)]
    level: Annotated[float, Check(lambda value: 0 < value < 1, "a fraction between 0 and 1")]
    by: Annotated[str, one_of(GROUPINGS)]
    size_bounds: tuple[float, ...]
    layouts: tuple[tuple[int, int], ...]
    log_half_widths: tuple[float, ...]

    def __post_init__(self) -> None:
        Record.__post_init__(self)
        bounds, layouts, widths = self.size_bounds, self.layouts, self.log_half_widths
        rising = all(low < high for low, high in zip((0.0, *bounds), (*bounds, math.inf), strict=True))
        self.require(
            "size_bounds", rising and bool(bounds) == (self.by == "size"), "rising, with by size only"
        )
        distinct = len(set(layouts)) == len(layouts) and bool(layouts) == (self.by == "layout")
        self.require("layouts", distinct, "distinct, with by layout only")
        per_group = len(widths) == 1 + len(bounds) + len(layouts)
        finite = all(math.isfinite(width) and width >= 0 for width in widths)
        self.require("log_half_widths", per_group and finite, "one number, 0 or more, per group")

    @classmethod
    def of_all(cls, log_half_width: float, *, method: str = "cross_conformal") -> Self:
        """One half-width for every workload."""
        return cls(
            method=method,
            level=LEVEL,
            by="all",
            size_bounds=(),
            layouts=(),
            log_half_widths=(float(log_half_width),),
        )


KINDS = ("size", "layout", "role")
"""Ways to be outside: larger or smaller sizes, a collective's layout, a role that was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut(Record):
    """Rows that a fit did not see, up to `doublings` away from those that it saw (infinite: any distance).

    `inside` is the share of them within their interval, widened by what the *other* held-out parts gave.
    """

    kind: Annotated[str, one_of(KINDS)]
    doublings: Annotated[float, Check(lambda value: value > 0, "a number above 0, or null")]
    rows: Annotated[int, at_least(1)]
    inside: Annotated[float, between(0, 1)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values; an infinite distance is null."""
        return {**record_values(self), "doublings": self.doublings if math.isfinite(self.doublings) else None}

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Inverse of `to_dict`.

        Raises:
            DataError: a field is missing, unknown, of another type or out of bounds.
        """
        if isinstance(values, dict) and values.get("doublings", 0) is None:
            values = {**values, "doublings": math.inf}
        return read_record(cls, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Widening(Record):
    """What is added to the half-width of log(time): per doubling of a size, of a layout's processes, and for a role.

    Raises:
        DataError: a value is not allowed.
    """

    size_per_doubling: Annotated[float, at_least(0)]
    layout_per_doubling: Annotated[float, at_least(0)]
    new_role: Annotated[float, at_least(0)]
    held_out: tuple[HeldOut, ...] = ()


PRIOR = Widening(size_per_doubling=math.log(1.3), layout_per_doubling=math.log(1.5), new_role=math.log(1.05))
"""Where nothing could be held out: what three of four operators of an A100 and a GH200 need (docs/validation.md)."""


STATISTICS: Mapping[str, str] = MappingProxyType(
    {"quiet": "10th percentiles of repetitions", "middle_five": "means of the middle five repetitions"}
)
"""How repetitions were condensed into one time, in words; the mean of the middle five is the paper's."""

MOST_PROCESSES = 1 << 16

Layout = tuple[int, int]
"""Nodes, GPUs per node."""


def model_file(operator: str, direction: Direction, processes_per_node: int = 1) -> str:
    """Name of a regressor's member inside the bundle."""
    level = "" if processes_per_node == 1 else f".{processes_per_node}-processes"
    return f"models/{operator}.{direction.value}{level}.onnx"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressorEntry(Record):
    """One regressor: what it answers, how it was fitted, and the file that holds it.

    `features`, `units` and `training_range` run in parallel, in the order of the operator's workload vector.
    `validation_error` is the mean absolute percentage error on the validation split, as a fraction;
    `extrapolation_error` the same on workloads beyond the fitted ones, and `interval_coverage` the share of held-out
    rows within their interval; both are null if not measured. `layouts` are the measured layouts of a collective,
    [nodes, GPUs per node], sorted; empty if not recorded, and for compute operators.
    `size_bytes` and `sha256` describe the ONNX file. `form` names the target and features of the fit (say log(time) on
    logs of the features); `processes_per_node` counts the processes of a node that ran the operator at once when it was
    measured (1 for a collective); `hyperparameters` are plain values.
    `role_errors` are validation errors by the operator's measured roles. `equal_features` are two features that are
    equal in all its measurements (see `Operator.equal_unless_measured`), empty if they differ.
    `table_digest` is the digest of the fitted workloads and times, `recipe_digest` of everything else that decides the
    file: seed, code and libraries. `data` names the source of the measurements in one line, None for the bundle's own;
    `transfer` is None if they were made on the bundle's own device. `elements_range` is the range of an elementwise
    operator's number of elements, None for other operators and if not recorded. `load` is the load of the device during
    all measurements. `kernel` is the kernel of fused attention (attention_kernels.toml), None if the software implies
    it or nothing states it. manifest.json has no field for None or for a load that is not stated, except
    `extrapolation_error` and `interval_coverage`.

    Raises:
        DataError: a value is not allowed, or differs from the operator table.
    """

    OPTIONAL: ClassVar[tuple[str, ...]] = ("elements_range", "widening", "data", "transfer", "load", "kernel")

    operator: str
    direction: Direction
    dtype: Annotated[str, NAME]
    features: tuple[str, ...]
    units: tuple[str, ...]
    training_range: tuple[tuple[float, float], ...]
    file: str
    sha256: Annotated[str, Check(re.compile("[0-9a-f]{64}").fullmatch, "64 hex digits")]
    size_bytes: Annotated[int, at_least(1)]
    algorithm: str
    form: str
    hyperparameters: Mapping[str, str | int | float | bool | None]
    validation_error: Annotated[float, FRACTION]
    extrapolation_error: Annotated[float | None, FRACTION] = None
    interval: Interval
    interval_coverage: Annotated[float | None, between(0, 1)] = None
    layouts: tuple[Layout, ...] = ()
    rows: Annotated[int, at_least(1)]
    statistic: Annotated[str, one_of(STATISTICS)]
    table_digest: Annotated[str, HEX]
    recipe_digest: Annotated[str, HEX]
    role_errors: Mapping[str, float] = field(default_factory=dict)
    equal_features: tuple[str, ...] = ()
    processes_per_node: int = 1
    elements_range: tuple[float, float] | None = None
    widening: Widening | None = None
    data: str | None = None
    transfer: Transfer | None = None
    load: Load = Load.NOT_STATED
    kernel: str | None = None

    def __post_init__(self) -> None:
        with error_context(f"regressor {self.operator} ({self.direction})"):
            known = OPERATORS.get(self.operator)
            if known is None or self.direction not in known.costs:
                raise DataError("this version has no such operator and direction")
            if self.features != tuple(known.features) or self.units != tuple(known.features.values()):
                raise DataError(
                    f"features {_named(self.features, self.units)} differ from this version's "
                    f"{_named(tuple(known.features), tuple(known.features.values()))}"
                )
            Record.__post_init__(self)
            self._check_processes(known)
            expected = model_file(self.operator, self.direction, self.processes_per_node)
            self.require("file", self.file == expected, repr(expected))
            self._check_values()
            self._check_layouts(known)
            self._check_ranges(known)

    def _check_values(self) -> None:
        for name, value in self.hyperparameters.items():
            if not _is_plain(value):
                raise DataError(found=value, expected="a text, number, flag or null").at(
                    "hyperparameters", name
                )
        for role, error in self.role_errors.items():
            if not (type(error) is float and FRACTION.accepts(error)):
                raise DataError(found=error, expected=FRACTION.expected).at("role_errors", role)

    def _check_processes(self, known: Operator) -> None:
        most = 1 if known.is_collective else MOST_PROCESSES
        holds = 1 <= self.processes_per_node <= most
        self.require("processes_per_node", holds, f"1 to {MOST_PROCESSES}, and 1 for collectives")

    def _check_layouts(self, known: Operator) -> None:
        collective = known.is_collective
        holds = list(self.layouts) == sorted(set(self.layouts)) and (collective or not self.layouts)
        self.require("layouts", holds, "distinct [nodes, GPUs per node], sorted, of collectives only")
        if self.interval.by == "layout" and not collective:
            raise DataError(field="by", found="layout", expected="size (no collective)").at("interval")

    def _check_ranges(self, known: Operator) -> None:
        equal = "two features of the operator that may be equal, or none"
        self.require("equal_features", self.equal_features in ((), known.equal_unless_measured), equal)
        ranges = self.training_range
        holds = len(ranges) == len(self.features) and all(map(_is_range, ranges))
        self.require("training_range", holds, "one finite [minimum, maximum] per feature")
        correction = None if self.transfer is None else self.transfer.correction
        if correction is not None and len(correction.knots[0]) != FEATURES + len(self.features):
            expected = f"log of time and efficiency, and of {len(self.features)} features"
            error = DataError(field="knots", found=correction.knots[0], expected=expected)
            raise error.at("transfer", "correction")
        elements = self.elements_range
        holds = elements is None or (known.is_elementwise and _is_range(elements))
        self.require("elements_range", holds, "a finite [minimum, maximum] of an elementwise operator")

    @classmethod
    def for_model(
        cls,
        model: bytes,
        *,
        operator: str,
        direction: Direction,
        training_range: Iterable[tuple[float, float]],
        processes_per_node: int = 1,
        **others: Any,
    ) -> Self:
        """Entry for the ONNX file `model`; features, units, file name, digest and size follow by themselves.

        Raises:
            UsageError: the operator is unknown.
            DataError: a value is not allowed.
        """
        known = operator_named(operator)
        return cls(
            operator=operator,
            direction=direction,
            features=tuple(known.features),
            units=tuple(known.features.values()),
            training_range=tuple((float(low), float(high)) for low, high in training_range),
            file=model_file(operator, direction, processes_per_node),
            sha256=sha256(model).hexdigest(),
            size_bytes=len(model),
            processes_per_node=processes_per_node,
            **others,
        )

    @property
    def key(self) -> Key:
        """Operator name and direction."""
        return self.operator, self.direction

    @property
    def direction_text(self) -> str:
        """The direction, with the processes per node where they were several: `forward ×2`."""
        return (
            f"{self.direction.value} ×{self.processes_per_node}"
            if self.processes_per_node > 1
            else self.direction.value
        )

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Inverse of `to_dict`.

        Raises:
            DataError: a field is missing, unknown, of another type or out of bounds.
        """
        names = [values.get(name) for name in ("operator", "direction")] if isinstance(values, dict) else []
        known = [f"{name:.80}" for name in names if isinstance(name, str)]
        if len(known) < 2:
            return read_record(cls, values)
        with error_context(f"regressor {known[0]} ({known[1]})"):
            return read_record(cls, values)


def _is_range(pair: tuple[float, float]) -> bool:
    return all(map(math.isfinite, pair)) and pair[0] <= pair[1]


def _is_plain(value: object) -> bool:
    # JSON has no NaN, and numpy's numbers are not Python's.
    return value is None or type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value))


def _named(names: Sequence[str], units: Sequence[str]) -> str:
    return "[" + ", ".join(f"{name} ({unit})" for name, unit in zip(names, units, strict=False)) + "]"
