"""What a bundle says about itself: `Manifest` and one `RegressorEntry` per regressor.

Reading fails closed: an unknown, missing or ill-typed field, a digest that does not fit, or an operator whose
features differ from this version's table is a `DataError` that names it.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from hashlib import sha256
from types import GenericAlias
from typing import Any, Self, TypeVar

from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.field_reader import FieldReader
from kernelcast.runtime.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.operators import OPERATORS, Direction

FORMAT = "kernelcast.bundle/1"
STATISTICS = ("quiet", "middle_five")
"""How repetitions were condensed into one time: 10th percentile, or the paper's mean of the middle five."""

Key = tuple[str, Direction]
"""What identifies a regressor inside a bundle: operator name and direction."""

_HEX = re.compile(r"[0-9a-f]+")
_WORD = re.compile(r"[A-Za-z0-9_.+-]+")
_Fingerprint = TypeVar("_Fingerprint", ComputeFingerprint, FabricFingerprint, SoftwareFingerprint)


def model_file(operator: str, direction: Direction) -> str:
    """Name of a regressor's member inside the bundle."""
    return f"models/{operator}.{direction.value}.onnx"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressorEntry:
    """One regressor: what it answers, how it was fitted, and the file that holds it.

    `features`, `units` and `training_range` run in parallel, in the order of the operator's workload vector.
    `validation_error` is the mean absolute percentage error on the validation split, as a fraction.
    `size_bytes` and `sha256` are those of the ONNX file. `form` says what the regressor was fitted on (say
    log(time) on logs of the features); `hyperparameters` are plain values.

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
    rows: int
    statistic: str

    def __post_init__(self) -> None:
        where = f"regressor {self.operator} ({self.direction})"
        known = OPERATORS.get(self.operator)
        if known is None or self.direction not in known.directions:
            raise DataError(f"{where}: this version has no such operator and direction")
        if self.features != tuple(known.features) or self.units != tuple(known.features.values()):
            raise DataError(
                f"{where}: features {_named(self.features, self.units)} differ from this version's "
                f"{_named(tuple(known.features), tuple(known.features.values()))}"
            )
        if self.file != model_file(self.operator, self.direction):
            expected = model_file(self.operator, self.direction)
            raise DataError(f"{where}: file is {self.file!r}, expected {expected!r}")
        _require(
            len(self.sha256) == 64 and _is_hex(self.sha256), where, "sha256", self.sha256, "64 hex digits"
        )
        _require(self.size_bytes > 0, where, "size_bytes", self.size_bytes, "at least 1")
        _require(self.rows > 0, where, "rows", self.rows, "at least 1")
        _require(bool(_WORD.fullmatch(self.dtype)), where, "dtype", self.dtype, "a name such as float32")
        _require(self.statistic in STATISTICS, where, "statistic", self.statistic, " or ".join(STATISTICS))
        for name, value in self.hyperparameters.items():
            _require(
                _is_plain(value), where, f"hyperparameters.{name}", value, "a text, number, flag or null"
            )
        error = self.validation_error
        _require(
            math.isfinite(error) and error >= 0, where, "validation_error", error, "a fraction, 0 or more"
        )
        _require(
            len(self.training_range) == len(self.features)
            and all(math.isfinite(v) for pair in self.training_range for v in pair)
            and all(low <= high for low, high in self.training_range),
            where,
            "training_range",
            self.training_range,
            "one finite [minimum, maximum] per feature",
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
        rows: int,
        statistic: str,
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
            file=model_file(operator, direction),
            sha256=sha256(model).hexdigest(),
            size_bytes=len(model),
            algorithm=algorithm,
            form=form,
            hyperparameters=dict(hyperparameters),
            validation_error=float(validation_error),
            rows=rows,
            statistic=statistic,
        )

    @property
    def key(self) -> Key:
        """Operator name and direction."""
        return self.operator, self.direction

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in manifest.json."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["direction"] = self.direction.value
        values["features"] = list(self.features)
        values["units"] = list(self.units)
        values["training_range"] = [list(pair) for pair in self.training_range]
        values["hyperparameters"] = dict(self.hyperparameters)
        return values

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Inverse of `to_dict`.

        Raises:
            DataError: a field is missing, unknown, ill-typed or out of bounds.
        """
        read = FieldReader("regressor", values, [f.name for f in fields(cls)])
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
            rows=read.integer("rows"),
            statistic=read.text("statistic"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything a bundle says beside its models. `created_at` is ISO 8601 with a time zone.

    Raises:
        DataError: a value is outside what is allowed, two regressors answer the same thing, or statistics are
            mixed.
    """

    kernelcast_version: str
    created_at: str
    dtype: str
    statistic: str
    compute: tuple[ComputeFingerprint, ...]
    fabric: tuple[FabricFingerprint, ...]
    software: tuple[SoftwareFingerprint, ...]
    dataset_digest: str
    seed: int
    regressors: tuple[RegressorEntry, ...]

    def __post_init__(self) -> None:
        where = "manifest"
        _require(
            _is_moment(self.created_at), where, "created_at", self.created_at, "ISO 8601 with a time zone"
        )
        _require(self.statistic in STATISTICS, where, "statistic", self.statistic, " or ".join(STATISTICS))
        _require(bool(_WORD.fullmatch(self.dtype)), where, "dtype", self.dtype, "a name such as float32")
        _require(_is_hex(self.dataset_digest), where, "dataset_digest", self.dataset_digest, "hex digits")
        seen: set[Key] = set()
        for entry in self.regressors:
            if entry.key in seen:
                raise DataError(f"manifest: two regressors answer {entry.operator} ({entry.direction})")
            seen.add(entry.key)
            if entry.statistic != self.statistic:
                raise DataError(
                    f"manifest: regressor {entry.operator} ({entry.direction}) has statistic "
                    f"{entry.statistic!r}, the bundle {self.statistic!r}; statistics are never mixed"
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in manifest.json; regressors sorted by operator and direction."""
        return {
            "format": FORMAT,
            "kernelcast_version": self.kernelcast_version,
            "created_at": self.created_at,
            "dtype": self.dtype,
            "statistic": self.statistic,
            "compute": _described(self.compute),
            "fabric": _described(self.fabric),
            "software": _described(self.software),
            "dataset_digest": self.dataset_digest,
            "seed": self.seed,
            "regressors": [entry.to_dict() for entry in sorted(self.regressors, key=lambda e: e.key)],
        }

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Inverse of `to_dict`.

        Raises:
            DataError: unknown format version, or a field is missing, unknown, ill-typed or out of bounds.
        """
        if isinstance(values, dict) and values.get("format") != FORMAT:
            raise DataError(f"manifest: format is {values.get('format')!r}, this version reads {FORMAT!r}")
        read = FieldReader("manifest", values, ["format", *(f.name for f in fields(cls))])
        return cls(
            kernelcast_version=read.text("kernelcast_version"),
            created_at=read.text("created_at"),
            dtype=read.text("dtype"),
            statistic=read.text("statistic"),
            compute=_fingerprints(ComputeFingerprint, "compute", read.items("compute")),
            fabric=_fingerprints(FabricFingerprint, "fabric", read.items("fabric")),
            software=_fingerprints(SoftwareFingerprint, "software", read.items("software")),
            dataset_digest=read.text("dataset_digest"),
            seed=read.integer("seed"),
            regressors=tuple(RegressorEntry.from_dict(entry) for entry in read.items("regressors")),
        )

    def to_json(self) -> bytes:
        """The one text of this manifest: equal manifests give equal bytes."""
        text = json.dumps(self.to_dict(), indent=2, sort_keys=True, ensure_ascii=True, allow_nan=False)
        return text.encode() + b"\n"


def _described(fingerprints: Sequence[_Fingerprint]) -> list[dict[str, Any]]:
    # The description is for readers of the manifest; the digest is what a store looks the hardware up by.
    rows = [{"digest": f.digest, "description": f.description, "fields": f.to_dict()} for f in fingerprints]
    return sorted(rows, key=lambda row: str(row["digest"]))


def _fingerprints(cls: type[_Fingerprint], name: str, rows: list[Any]) -> tuple[_Fingerprint, ...]:
    found: list[_Fingerprint] = []
    for row in rows:
        read = FieldReader(f"manifest {name}", row, ["digest", "description", "fields"])
        values = row["fields"]
        if not isinstance(values, dict):
            raise DataError(f"manifest {name}: fields is {type(values).__name__}, expected an object")
        fingerprint = cls.from_dict(values)
        for f in fields(cls):
            wanted = tuple if isinstance(f.type, GenericAlias) else f.type
            value = getattr(fingerprint, f.name)
            texts = wanted is not tuple or all(isinstance(item, str) for item in value)
            if type(value) is not wanted or not texts:
                raise DataError(f"manifest {name}: {f.name} is {value!r:.80}, expected {f.type}")
        if fingerprint.digest != read.text("digest") or fingerprint.description != read.text("description"):
            raise DataError(
                f"manifest {name}: digest or description does not fit the fields of {read.text('digest')}"
            )
        found.append(fingerprint)
    return tuple(found)


def _require(holds: bool, where: str, name: str, value: object, expected: str) -> None:
    if not holds:
        raise DataError(f"{where}: {name} is {value!r:.80}, expected {expected}")


def _is_plain(value: object) -> bool:
    # JSON has no NaN, and numpy's numbers are not Python's.
    return value is None or type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value))


def _is_hex(text: str) -> bool:
    return _HEX.fullmatch(text) is not None


def _is_moment(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _named(names: Sequence[str], units: Sequence[str]) -> str:
    return "[" + ", ".join(f"{name} ({unit})" for name, unit in zip(names, units, strict=False)) + "]"
