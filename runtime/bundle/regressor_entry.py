"""The manifest's entry of one regressor: what it answers, how it was fitted, how far it may be trusted."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, ClassVar, Self

from kernelcast.runtime.bundle.checks import is_hex, is_word, require
from kernelcast.runtime.bundle.correction import FEATURES
from kernelcast.runtime.bundle.interval import Interval
from kernelcast.runtime.bundle.transfer import Transfer
from kernelcast.runtime.bundle.widening import Widening
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.hardware.load import Load
from kernelcast.runtime.operators import OPERATORS, Direction, Key
from kernelcast.runtime.record import Record, read_record

STATISTICS = ("quiet", "middle_five")
"""How repetitions were condensed into one time: 10th percentile, or the paper's mean of the middle five."""

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
    `extrapolation_error` the same on workloads beyond those fitted, and `interval_coverage` the share of held-out rows
    within their interval, each null where it was not measured. `layouts` are those that a collective was measured in,
    [nodes, GPUs per node], sorted; empty where that is not recorded, and for everything else.
    `size_bytes` and `sha256` are those of the ONNX file. `form` says what the regressor was fitted on (say
    log(time) on logs of the features); `processes_per_node` is how many processes of a node ran the operator at once
    when it was measured (1 for a collective); `hyperparameters` are plain values.
    `role_errors` are validation errors by the operator's roles it was measured in, `equal_features` the two features
    that all its measurements have equal (see `Operator.equal_unless_measured`), empty where they differ.
    `table_digest` is that of the workloads and times it was fitted on, `recipe_digest` that of everything else that
    decides the file: seed, code and libraries. `data` says in one line whose measurements these are, None where the
    bundle's are meant; `transfer` is None where they were made on the bundle's own device. `elements_range` is that of
    an elementwise operator's number of elements, None for every other and where it is not recorded. `load` is that of
    the device while all of its rows were measured; `kernel` is that of fused attention which they are of
    (attention_kernels.toml), None where the software says it or nothing does. What is None, and a load that is not
    stated, is no field of manifest.json, except `extrapolation_error` and `interval_coverage`.

    Raises:
        DataError: a value is outside what is allowed, or differs from the operator table.
    """

    OPTIONAL: ClassVar[tuple[str, ...]] = ("elements_range", "widening", "data", "transfer", "load", "kernel")

    operator: str
    direction: Direction
    dtype: str
    features: tuple[str, ...]
    units: tuple[str, ...]
    training_range: tuple[tuple[float, float], ...]
    file: str
    sha256: str
    size_bytes: int
    algorithm: str
    form: str
    hyperparameters: Mapping[str, str | int | float | bool | None]
    validation_error: float
    extrapolation_error: float | None = None
    interval: Interval
    interval_coverage: float | None = None
    layouts: tuple[Layout, ...] = ()
    rows: int
    statistic: str
    table_digest: str
    recipe_digest: str
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
        where = f"regressor {self.operator} ({self.direction})"
        known = OPERATORS.get(self.operator)
        if known is None or self.direction not in known.costs:
            raise DataError(f"{where}: this version has no such operator and direction")
        if self.features != tuple(known.features) or self.units != tuple(known.features.values()):
            raise DataError(
                f"{where}: features {_named(self.features, self.units)} differ from this version's "
                f"{_named(tuple(known.features), tuple(known.features.values()))}"
            )
        self._check_processes(where)
        expected = model_file(self.operator, self.direction, self.processes_per_node)
        if self.file != expected:
            raise DataError(f"{where}: file is {self.file!r}, expected {expected!r}")
        digest = self.sha256
        require(len(digest) == 64 and is_hex(digest), where, "sha256", digest, "64 hex digits")
        for name in ("table_digest", "recipe_digest"):
            require(is_hex(getattr(self, name)), where, name, getattr(self, name), "hex digits")
        require(self.size_bytes > 0, where, "size_bytes", self.size_bytes, "at least 1")
        require(self.rows > 0, where, "rows", self.rows, "at least 1")
        require(is_word(self.dtype), where, "dtype", self.dtype, "a name such as float32")
        require(self.statistic in STATISTICS, where, "statistic", self.statistic, " or ".join(STATISTICS))
        for name, value in self.hyperparameters.items():
            require(_is_plain(value), where, f"hyperparameters.{name}", value, "a text, number, flag or null")
        self._check_errors(where)
        self._check_layouts(where)
        require(
            self.equal_features in ((), known.equal_unless_measured),
            where,
            "equal_features",
            self.equal_features,
            "two features of the operator that may be equal, or none",
        )
        require(
            len(self.training_range) == len(self.features)
            and all(math.isfinite(v) for pair in self.training_range for v in pair)
            and all(low <= high for low, high in self.training_range),
            where,
            "training_range",
            self.training_range,
            "one finite [minimum, maximum] per feature",
        )

        correction = None if self.transfer is None else self.transfer.correction
        require(
            correction is None or len(correction.knots[0]) == FEATURES + len(self.features),
            where,
            "correction.knots",
            "" if correction is None else correction.knots[0],
            f"log of time and efficiency, and of {len(self.features)} features",
        )
        elements = self.elements_range
        require(
            elements is None
            or (known.is_elementwise and all(map(math.isfinite, elements)) and elements[0] <= elements[1]),
            where,
            "elements_range",
            elements,
            "a finite [minimum, maximum] of an elementwise operator",
        )

    def _check_errors(self, where: str) -> None:
        error, beyond, coverage = self.validation_error, self.extrapolation_error, self.interval_coverage
        expected = "a fraction, 0 or more"
        require(math.isfinite(error) and error >= 0, where, "validation_error", error, expected)
        require(
            beyond is None or (math.isfinite(beyond) and beyond >= 0),
            where,
            "extrapolation_error",
            beyond,
            f"{expected}, or null",
        )
        require(
            coverage is None or 0 <= coverage <= 1, where, "interval_coverage", coverage, "0 to 1, or null"
        )
        for role, found in self.role_errors.items():
            holds = type(found) is float and math.isfinite(found) and found >= 0
            require(holds, where, f"role_errors[{role!r}]", found, expected)

    def _check_processes(self, where: str) -> None:
        collective = OPERATORS[self.operator].is_collective
        require(
            1 <= self.processes_per_node <= (1 if collective else MOST_PROCESSES),
            where,
            "processes_per_node",
            self.processes_per_node,
            f"1 to {MOST_PROCESSES}, and 1 for collectives",
        )

    def _check_layouts(self, where: str) -> None:
        collective = OPERATORS[self.operator].is_collective
        require(
            list(self.layouts) == sorted(set(self.layouts)) and (collective or not self.layouts),
            where,
            "layouts",
            self.layouts,
            "distinct [nodes, GPUs per node], sorted, of collectives only",
        )
        require(
            collective or self.interval.by != "layout",
            where,
            "interval.by",
            self.interval.by,
            "layout for collectives only",
        )

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
            DataError: a value is outside what is allowed.
        """
        known = OPERATORS.get(operator)
        if known is None:
            raise UsageError(f"operator {operator!r} is unknown; known are {', '.join(OPERATORS)}")
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
        where = f"regressor {known[0]} ({known[1]})" if len(known) == 2 else "regressor"
        return read_record(cls, values, where=where)


def _is_plain(value: object) -> bool:
    # JSON has no NaN, and numpy's numbers are not Python's.
    return value is None or type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value))


def _named(names: Sequence[str], units: Sequence[str]) -> str:
    return "[" + ", ".join(f"{name} ({unit})" for name, unit in zip(names, units, strict=False)) + "]"
