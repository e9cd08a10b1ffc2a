"""The manifest of a bundle: `Manifest` and one `RegressorEntry` per regressor.

Reading fails closed: an unknown, missing or ill-typed field, a digest that does not fit, or an operator whose
features differ from this version's table is a `DataError` that names it. A described fabric is a fingerprint with the
backend `described` that holds the fields of its description (docs/fabrics.md), a line of TOML each: `links` the name,
the source and what is inside a node, `nics` what is between nodes; so it lives and merges like any other fabric.
"""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Self

from kernelcast.runtime.bundle.calibration import Calibration
from kernelcast.runtime.bundle.fingerprint import (
    DESCRIBED,
    ComputeFingerprint,
    FabricFingerprint,
    SoftwareFingerprint,
)
from kernelcast.runtime.bundle.regressor_entry import STATISTICS, RegressorEntry, model_file
from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.errors import DataError, UsageError, error_context
from kernelcast.runtime.hardware.devices import loads_in_words
from kernelcast.runtime.hardware.fabric import Fabric, fabric_from_lines, fabric_lines
from kernelcast.runtime.operators import OPERATORS, Key
from kernelcast.runtime.record import HEX, MOMENT, NAME, Record, above, one_of, read_record, record_values

__all__ = [
    "FORMAT",
    "STATISTICS",
    "UNKNOWN_MOMENT",
    "Key",
    "Manifest",
    "Peak",
    "RegressorEntry",
    "model_file",
]

FORMAT = "kernelcast.bundle/3"

UNKNOWN_MOMENT = "1970-01-01T00:00:00.000Z"
"""`created_at` where no measurement has a time."""

_Fingerprint = ComputeFingerprint | FabricFingerprint | SoftwareFingerprint
_FINGERPRINTS: dict[str, type[_Fingerprint]] = {
    "compute": ComputeFingerprint,
    "fabric": FabricFingerprint,
    "software": SoftwareFingerprint,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak(Record):
    """Highest rate of matrix products of a device in an element type; `source` says who published or measured it."""

    device: str
    dtype: str
    flops_per_s: Annotated[float, above(0)]
    source: str

    def __str__(self) -> str:
        return f"{self.flops_per_s / 1e9:.4g} GFLOP/s in {self.dtype} ({self.source})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described(Record):
    """A fingerprint in manifest.json: the description is for its readers, a store looks the digest up."""

    digest: str
    description: str
    fields: Mapping[str, Any]

    @classmethod
    def of(cls, fingerprint: _Fingerprint) -> Self:
        return cls(
            digest=fingerprint.digest, description=fingerprint.description, fields=fingerprint.to_dict()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Record):
    """Everything in a bundle except its models.

    `created_at` is ISO 8601 with a time zone: the moment of the newest measurement, so that the same measurements give
    the same bytes. `calibration` is None if no measured steps corrected the bundle. `peaks` are the measured peaks of
    devices without a published one (CPUs), by their description in `compute`. manifest.json leaves both out if empty.

    Raises:
        DataError: a value is not allowed, two regressors answer the same thing, or statistics are
            mixed.
    """

    OPTIONAL: ClassVar[tuple[str, ...]] = ("calibration", "peaks")

    kernelcast_version: str
    created_at: Annotated[str, MOMENT]
    dtype: Annotated[str, NAME]
    statistic: Annotated[str, one_of(STATISTICS)]
    compute: tuple[ComputeFingerprint, ...]
    fabric: tuple[FabricFingerprint, ...]
    software: tuple[SoftwareFingerprint, ...]
    dataset_digest: Annotated[str, HEX]
    seed: int
    regressors: tuple[RegressorEntry, ...]
    calibration: Calibration | None = None
    peaks: tuple[Peak, ...] = ()

    def __post_init__(self) -> None:
        Record.__post_init__(self)
        devices = {fingerprint.description for fingerprint in self.compute}
        for index, peak in enumerate(self.peaks):
            if peak.device not in devices:
                expected = "a device that compute describes"
                raise DataError(field="device", found=peak.device, expected=expected).at("peaks", index)
        seen: set[tuple[Key, int]] = set()
        for entry in self.regressors:
            level = entry.key, entry.processes_per_node
            if level in seen:
                beside = f" with {level[1]} processes per node" if level[1] > 1 else ""
                raise DataError(f"two regressors answer {entry.operator} ({entry.direction}){beside}")
            seen.add(level)
            if entry.statistic != self.statistic:
                raise DataError(
                    f"regressor {entry.operator} ({entry.direction}) has statistic "
                    f"{entry.statistic!r}, the bundle {self.statistic!r}; statistics are never mixed"
                )

    @property
    def loads(self) -> str:
        """The load of the device under which the regressors of operators that compute were measured, in words."""
        return loads_in_words(
            one.load for one in self.regressors if not OPERATORS[one.operator].is_collective
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in manifest.json; regressors sorted by operator, direction and level."""
        described = {
            name: sorted(
                (_Described.of(one).to_dict() for one in getattr(self, name)), key=lambda row: row["digest"]
            )
            for name in _FINGERPRINTS
        }
        entries = sorted(self.regressors, key=lambda entry: (entry.key, entry.processes_per_node))
        regressors = [entry.to_dict() for entry in entries]
        return {"format": FORMAT, **record_values(self), **described, "regressors": regressors}

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Inverse of `to_dict`.

        Raises:
            DataError: unknown format version, or a field is missing, unknown, of another type or out of bounds.
        """
        with error_context("manifest"):
            if isinstance(values, dict):
                values = dict(values)
                if (found := values.pop("format", None)) != FORMAT:
                    again = (
                        "make the bundle again from its database: kernelcast train --db DATABASE -o BUNDLE"
                    )
                    raise DataError(field="format", found=found, expected=f"{FORMAT!r}; {again}")
                for name, kind in _FINGERPRINTS.items():
                    if isinstance(rows := values.get(name), list):
                        values[name] = [
                            _fingerprint(kind, row, name, index) for index, row in enumerate(rows)
                        ]
            return read_record(cls, values)

    def to_json(self) -> bytes:
        """The one text of this manifest: equal manifests give equal bytes."""
        text = json.dumps(self.to_dict(), indent=2, sort_keys=True, ensure_ascii=True, allow_nan=False)
        return text.encode() + b"\n"


def _fingerprint(kind: type[_Fingerprint], row: object, name: str, index: int) -> _Fingerprint:
    with error_context(at=name), error_context(at=index):
        stated = read_record(_Described, row)
        found = read_record(kind, stated.fields)
        if stated != _Described.of(found):
            raise DataError(f"digest or description does not fit the fields of {stated.digest}")
        return found


_BETWEEN = "between."


def fingerprint_of(fabric: Fabric) -> FabricFingerprint:
    """The fingerprint that holds a description."""
    lines = fabric_lines(fabric)
    return FabricFingerprint(
        backend=DESCRIBED,
        gpus_per_node=fabric.devices_per_node,
        links=tuple(line for line in lines if not line.startswith(_BETWEEN)),
        nics=tuple(line for line in lines if line.startswith(_BETWEEN)),
    )


def described_fabrics(fingerprints: Iterable[FabricFingerprint], *, where: str) -> tuple[Fabric, ...]:
    """The descriptions among fingerprints; errors begin with `where`.

    Raises:
        DataError: a description has a field that is missing, unknown or not allowed.
    """
    return tuple(
        _fabric((*one.links, *one.nics), where=f"{where}: described fabric")
        for one in fingerprints
        if one.backend == DESCRIBED
    )


@lru_cache(maxsize=1 << 6)
def _fabric(lines: tuple[str, ...], *, where: str) -> Fabric:
    return fabric_from_lines(lines, where=where)


def with_description(manifest: Manifest, fabric: Fabric) -> Manifest:
    """The manifest of a bundle whose fabric `fabric` describes, instead of what described it before.

    Raises:
        UsageError: the measured nodes have another number of devices.
    """
    measured = measured_fabrics(manifest.fabric)
    sizes = sorted({one.gpus_per_node for one in measured})
    if sizes and fabric.devices_per_node not in sizes:
        known = ", ".join(map(str, sizes))
        raise UsageError(
            f"fabric {fabric.name} has nodes of {fabric.devices_per_node}, expected {known}, as the bundle was measured"
        )
    return replace(manifest, fabric=(*measured, fingerprint_of(fabric)))


def measured_fabrics(fingerprints: Iterable[FabricFingerprint]) -> tuple[FabricFingerprint, ...]:
    """Fabrics that collectives were measured over."""
    return tuple(one for one in fingerprints if one.backend != DESCRIBED)
