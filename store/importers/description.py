"""Facts that imported files lack: device, fabric, software, licence, …

They come from a TOML file, from options, or both. Fields are named as in the fingerprints; unknown fields stay 0 or
empty.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.errors import DataError, UsageError, either, error_context
from kernelcast.runtime.hardware import devices
from kernelcast.runtime.record import Record, read_fields
from kernelcast.runtime.small_file import parse_toml
from kernelcast.store.importers.tables import SourceFile, read_text_file
from kernelcast.store.runs import MeasuredRun, Run, Source

DESCRIPTION_FORMAT = "kernelcast.import/1"
_MAX_BYTES = 2**20
_KINDS = ("cpu", "cuda", "rocm")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")

Fields = Mapping[str, Any]
_NONE: Fields = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourceFields(Record):
    """Table `[source]`: the origin of the rows. `site` and `note` are free text."""

    licence: str = ""
    reference: str = ""
    site: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowFields(Record):
    """Table `[rows]`: defaults for rows without the field."""

    dtype: str = ""
    statistic: str = ""
    variant: str = ""


_TABLES: Mapping[str, type[Record]] = {
    "hardware": ComputeFingerprint,
    "fabric": FabricFingerprint,
    "software": SoftwareFingerprint,
    "source": _SourceFields,
    "rows": _RowFields,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Stated fields, by table; UsageError for an unknown field or another type."""

    hardware: Fields = field(default_factory=lambda: _NONE)
    fabric: Fields = field(default_factory=lambda: _NONE)
    software: Fields = field(default_factory=lambda: _NONE)
    source: Fields = field(default_factory=lambda: _NONE)
    rows: Fields = field(default_factory=lambda: _NONE)
    conditions: Fields = field(default_factory=lambda: _NONE)

    def __post_init__(self) -> None:
        for table, record in _TABLES.items():
            checked = _checked(table, getattr(self, table), record)
            object.__setattr__(self, table, MappingProxyType(checked))

    def over(self, below: "Description") -> "Description":
        """The fields of both descriptions; this description takes precedence."""
        names = (*_TABLES, "conditions")
        return replace(self, **{name: {**getattr(below, name), **getattr(self, name)} for name in names})

    def compute(self) -> ComputeFingerprint:
        """The device's fingerprint, by default of kind `cuda`; UsageError without a device name."""
        if not self.hardware.get("device_name"):
            raise UsageError(
                "the files do not name the device that was measured; give --device-name or [hardware] device_name"
            )
        return ComputeFingerprint(**{"kind": "cuda", **self.hardware})

    def network(self) -> FabricFingerprint:
        """The fabric's fingerprint, by default with backend `nccl`; UsageError without the devices per node."""
        if "gpus_per_node" not in self.fabric:
            raise UsageError(
                "the files do not state the devices per node, which collectives depend on; "
                "give --gpus-per-node or [fabric] gpus_per_node"
            )
        return FabricFingerprint(**{"backend": "nccl", **self.fabric})

    def row_default(self, name: str) -> str:
        """The default `dtype`, `statistic` or `variant` of rows, or empty."""
        return str(self.rows.get(name, ""))

    def run(self, command: str, file: SourceFile, fabric: FabricFingerprint | None) -> MeasuredRun:
        """The run of an imported file, without kernelcast version, date and samples."""
        stated, compute, software = (
            _SourceFields(**self.source),
            self.compute(),
            SoftwareFingerprint(**{"torch": "", **self.software}),
        )
        source = Source(
            kind="import",
            name=file.name,
            file_digest=file.digest,
            licence=stated.licence,
            reference=stated.reference,
        )
        run = Run(
            command=command,
            compute_id=compute.digest,
            software_id=software.digest,
            fabric_id=None if fabric is None else fabric.digest,
            conditions=self.conditions,
            source=source,
            site=stated.site,
            note=stated.note,
        )
        return MeasuredRun(run=run, compute=compute, fabric=fabric, software=software)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """A description from the tables of a file; UsageError for an unknown table or field, or another type."""
        tables = {name: value for name, value in values.items() if name != "format"}
        if values.get("format") != DESCRIPTION_FORMAT:
            raise UsageError(field="format", found=values.get("format"), expected=repr(DESCRIPTION_FORMAT))
        for name, value in tables.items():
            known = (*_TABLES, "conditions")
            if name not in known:
                raise UsageError(f"[{name:.40}] is unknown, known are {', '.join(known)}")
            if not isinstance(value, dict):
                raise UsageError(field=name, found=value, expected="a table")
        return cls(**tables)


REPOSITORIES: Mapping[str, tuple[str, str]] = {
    "aiconfigurator": ("https://github.com/ai-dynamo/aiconfigurator", "Apache-2.0"),
    "simumax": ("https://github.com/MooreThreads/SimuMax", "Apache-2.0"),
    "liger": ("https://github.com/linkedin/Liger-Kernel", "BSD-2-Clause"),
}
"""Address and licence (SPDX) of repositories by the name of the importer."""


def published(importer: str, commit: str) -> Description:
    """The source, its reference `address@commit` if `commit` is known: 7 to 40 hex digits, else UsageError."""
    if commit and not _COMMIT.fullmatch(commit):
        raise UsageError(f"commit: found {commit!r:.60}, expected 7 to 40 hexadecimal digits")
    address, licence = REPOSITORIES[importer]
    return Description(source={"licence": licence, "reference": f"{address}@{commit}" if commit else address})


def device_named(name: str) -> Fields:
    """Fields of `[hardware]` in a device's name: the name and the memory (`80GB`).

    For known devices the memory is from the table of devices: `GH200 120GB` counts the memory of its CPU.
    """
    memory, known = re.search(r"\b(\d+)GB\b", name), devices.device_named(name)
    if memory is None:
        return {"device_name": name}
    return {"device_name": name, "memory_gib": known.memory_bytes >> 30 if known else int(memory[1])}


def read_description(path: Path) -> Description:
    """Read a description file (TOML); DataError where it is missing, too large or none."""
    text = read_text_file(path, limit=_MAX_BYTES).text
    try:
        return Description.from_mapping(parse_toml(text.encode()))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid TOML ({error})") from error
    except UsageError as error:
        raise DataError.of(error).within(str(path)) from error


def _checked(table: str, values: Fields, record: type[Record]) -> dict[str, Any]:
    with error_context(at=table, kind=UsageError):
        checked = read_fields(record, values)
        if (kind := checked.get("kind", "cuda")) not in _KINDS:
            raise UsageError(field="kind", found=kind, expected=either(_KINDS))
        devices = checked.get("gpus_per_node")
        if isinstance(devices, int) and devices < 1:
            raise UsageError(field="gpus_per_node", found=devices, expected="at least 1")
    return checked
