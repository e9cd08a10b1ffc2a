"""The manifest of a bundle: `Manifest` and one `RegressorEntry` per regressor.

Reading fails closed: an unknown, missing or ill-typed field, a digest that does not fit, or an operator whose
features differ from this version's table is a `DataError` that names it.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from types import GenericAlias
from typing import Any, Self, TypeVar

from kernelcast.runtime.bundle.calibration import Calibration
from kernelcast.runtime.bundle.field_reader import FieldReader, is_hex, is_moment, is_word, require
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.bundle.regressor_entry import STATISTICS, RegressorEntry, model_file
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.hardware.load import loads_in_words
from kernelcast.runtime.hardware.peak import Peak
from kernelcast.runtime.operators import OPERATORS, Key

__all__ = ["FORMAT", "STATISTICS", "UNKNOWN_MOMENT", "Key", "Manifest", "RegressorEntry", "model_file"]

FORMAT = "kernelcast.bundle/3"
_OPTIONAL = ("calibration", "peaks")

UNKNOWN_MOMENT = "1970-01-01T00:00:00.000Z"
"""`created_at` where no measurement has a time."""

_Fingerprint = TypeVar("_Fingerprint", ComputeFingerprint, FabricFingerprint, SoftwareFingerprint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything that a bundle holds but its models. `created_at` is ISO 8601 with a time zone:
    the moment of the newest measurement, so that the same measurements give the same bytes. `calibration` is None
    where no measured steps corrected the bundle; manifest.json then has no such field. `peaks` are those of devices
    whose peak is measured, not published (CPUs), by the description in `compute`; without any it has no such field.

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
    calibration: Calibration | None = None
    peaks: tuple[Peak, ...] = ()

    def __post_init__(self) -> None:
        where = "manifest"
        require(is_moment(self.created_at), where, "created_at", self.created_at, "ISO 8601 with a time zone")
        require(self.statistic in STATISTICS, where, "statistic", self.statistic, " or ".join(STATISTICS))
        require(is_word(self.dtype), where, "dtype", self.dtype, "a name such as float32")
        require(is_hex(self.dataset_digest), where, "dataset_digest", self.dataset_digest, "hex digits")
        devices = {fingerprint.description for fingerprint in self.compute}
        for peak in self.peaks:
            rate = peak.flops_per_s
            require(peak.device in devices, where, "peaks", peak.device, "devices that compute describes")
            require(math.isfinite(rate) and rate > 0, where, "peaks", rate, "a rate above 0")
        seen: set[tuple[Key, int]] = set()
        for entry in self.regressors:
            level = entry.key, entry.processes_per_node
            if level in seen:
                beside = f" with {level[1]} processes per node" if level[1] > 1 else ""
                raise DataError(
                    f"manifest: two regressors answer {entry.operator} ({entry.direction}){beside}"
                )
            seen.add(level)
            if entry.statistic != self.statistic:
                raise DataError(
                    f"manifest: regressor {entry.operator} ({entry.direction}) has statistic "
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
            "regressors": [
                entry.to_dict()
                for entry in sorted(self.regressors, key=lambda e: (e.key, e.processes_per_node))
            ],
            **({} if self.calibration is None else {"calibration": self.calibration.to_dict()}),
            **({"peaks": [peak.to_dict() for peak in self.peaks]} if self.peaks else {}),
        }

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Inverse of `to_dict`.

        Raises:
            DataError: unknown format version, or a field is missing, unknown, ill-typed or out of bounds.
        """
        if isinstance(values, dict) and values.get("format") != FORMAT:
            raise DataError(
                f"manifest: format is {values.get('format')!r:.80}, expected {FORMAT!r}; "
                "make the bundle again from its database: kernelcast train --db DATABASE -o BUNDLE"
            )
        there = [name for name in _OPTIONAL if isinstance(values, dict) and name in values]
        names = ["format", *(f.name for f in fields(cls) if f.name not in _OPTIONAL), *there]
        read = FieldReader("manifest", values, names)
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
            calibration=Calibration.from_dict(read.value("calibration")) if "calibration" in there else None,
            peaks=tuple(map(_peak, read.items("peaks"))) if "peaks" in there else (),
        )

    def to_json(self) -> bytes:
        """The one text of this manifest: equal manifests give equal bytes."""
        text = json.dumps(self.to_dict(), indent=2, sort_keys=True, ensure_ascii=True, allow_nan=False)
        return text.encode() + b"\n"


def _peak(values: object) -> Peak:
    read = FieldReader("manifest peaks", values, [f.name for f in fields(Peak)])
    return Peak(
        device=read.text("device"),
        dtype=read.text("dtype"),
        flops_per_s=read.number("flops_per_s"),
        source=read.text("source"),
    )


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
