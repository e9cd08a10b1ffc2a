"""The manifest's entry of one regressor: what it answers, how it was fitted, how far it may be trusted."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import sha256
from typing import Any, Self

from kernelcast.runtime.bundle.correction import FEATURES
from kernelcast.runtime.bundle.field_reader import FieldReader, is_hex, is_word, require
from kernelcast.runtime.bundle.interval import Interval
from kernelcast.runtime.bundle.transfer import Transfer
from kernelcast.runtime.bundle.widening import Widening
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.hardware.load import Load
from kernelcast.runtime.operators import OPERATORS, Direction, Key

STATISTICS = ("quiet", "middle_five")
"""How repetitions were condensed into one time: 10th percentile, or the paper's mean of the middle five."""

MOST_PROCESSES = 1 << 16
_OPTIONAL = ("elements_range", "widening", "data", "transfer", "load", "kernel")

Layout = tuple[int, int]
"""Nodes, GPUs per node."""


def model_file(operator: str, direction: Direction, processes_per_node: int = 1) -> str:
    """Name of a regressor's member inside the bundle."""
    level = "" if processes_per_node == 1 else f".{processes_per_node}-processes"
    return f"models/{operator}.{direction.value}{level}.onnx"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressorEntry:
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
    extrapolation_error: float | None
    interval: Interval
    interval_coverage: float | None
    layouts: tuple[Layout, ...]
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
        dtype: str,
        training_range: Sequence[tuple[float, float]],
        algorithm: str,
        form: str,
        hyperparameters: Mapping[str, str | int | float | bool | None],
        validation_error: float,
        interval: Interval,
        rows: int,
        statistic: str,
        table_digest: str,
        recipe_digest: str,
        extrapolation_error: float | None = None,
        interval_coverage: float | None = None,
        layouts: Sequence[Layout] = (),
        role_errors: Mapping[str, float] | None = None,
        equal_features: tuple[str, ...] = (),
        processes_per_node: int = 1,
        elements_range: tuple[float, float] | None = None,
        widening: Widening | None = None,
        load: Load = Load.NOT_STATED,
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
            dtype=dtype,
            features=tuple(known.features),
            units=tuple(known.features.values()),
            training_range=tuple((float(low), float(high)) for low, high in training_range),
            file=model_file(operator, direction, processes_per_node),
            sha256=sha256(model).hexdigest(),
            size_bytes=len(model),
            algorithm=algorithm,
            form=form,
            hyperparameters=dict(hyperparameters),
            validation_error=float(validation_error),
            extrapolation_error=extrapolation_error,
            interval=interval,
            interval_coverage=interval_coverage,
            layouts=tuple(sorted(set(layouts))),
            rows=rows,
            statistic=statistic,
            table_digest=table_digest,
            recipe_digest=recipe_digest,
            role_errors=dict(role_errors or {}),
            equal_features=equal_features,
            processes_per_node=processes_per_node,
            elements_range=elements_range,
            widening=widening,
            load=load,
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

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in manifest.json."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["direction"] = self.direction.value
        values["load"] = self.load.value or None
        values["features"] = list(self.features)
        values["units"] = list(self.units)
        values["training_range"] = [list(pair) for pair in self.training_range]
        values["hyperparameters"] = dict(self.hyperparameters)
        values["interval"] = self.interval.to_dict()
        values["layouts"] = [list(layout) for layout in self.layouts]
        values["role_errors"] = dict(self.role_errors)
        values["equal_features"] = list(self.equal_features)
        if self.elements_range is not None:
            values["elements_range"] = list(self.elements_range)
        for name in ("widening", "transfer"):
            if values[name] is not None:
                values[name] = values[name].to_dict()
        for name in _OPTIONAL:
            if values[name] is None:
                del values[name]
        return values

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Inverse of `to_dict`.

        Raises:
            DataError: a field is missing, unknown, ill-typed or out of bounds.
        """
        given = {name for name in _OPTIONAL if isinstance(values, dict) and name in values}
        names = [f.name for f in fields(cls) if f.name in given or f.name not in _OPTIONAL]
        read = FieldReader("regressor", values, names)
        direction = read.text("direction")
        if direction not in set(Direction):
            raise DataError(
                f"regressor {read.text('operator')}: direction is {direction!r}, not one of this version's"
            )
        return cls(
            operator=read.text("operator"),
            direction=Direction(direction),
            dtype=read.text("dtype"),
            features=tuple(read.texts("features")),
            units=tuple(read.texts("units")),
            training_range=read.pairs("training_range"),
            file=read.text("file"),
            sha256=read.text("sha256"),
            size_bytes=read.integer("size_bytes"),
            algorithm=read.text("algorithm"),
            form=read.text("form"),
            hyperparameters=read.settings("hyperparameters"),
            validation_error=read.number("validation_error"),
            extrapolation_error=read.number_or_null("extrapolation_error"),
            interval=_interval(read),
            interval_coverage=read.number_or_null("interval_coverage"),
            layouts=read.whole_pairs("layouts"),
            rows=read.integer("rows"),
            statistic=read.text("statistic"),
            table_digest=read.text("table_digest"),
            recipe_digest=read.text("recipe_digest"),
            role_errors=read.settings("role_errors"),  # type: ignore[arg-type]  # checked when it is made
            equal_features=tuple(read.texts("equal_features")),
            processes_per_node=read.integer("processes_per_node"),
            elements_range=read.pair("elements_range") if "elements_range" in given else None,
            widening=Widening.from_dict(read.value("widening")) if "widening" in given else None,
            data=read.text("data") if "data" in given else None,
            transfer=Transfer.from_dict(read.value("transfer")) if "transfer" in given else None,
            load=_load(read) if "load" in given else Load.NOT_STATED,
            kernel=read.text("kernel") if "kernel" in given else None,
        )


def _load(read: FieldReader) -> Load:
    stated = [one for one in Load if one and one.value == read.text("load")]
    if not stated:
        raise DataError(
            f"regressor {read.text('operator')} ({read.text('direction')}): load is {read.text('load')!r:.80}, "
            f"expected {' or '.join(filter(None, Load))}"
        )
    return stated[0]


def _interval(read: FieldReader) -> Interval:
    try:
        return Interval.from_dict(read.value("interval"))
    except DataError as error:
        raise DataError(f"regressor {read.text('operator')} ({read.text('direction')}): {error}") from error


def _is_plain(value: object) -> bool:
    # JSON has no NaN, and numpy's numbers are not Python's.
    return value is None or type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value))


def _named(names: Sequence[str], units: Sequence[str]) -> str:
    return "[" + ", ".join(f"{name} ({unit})" for name, unit in zip(names, units, strict=False)) + "]"
