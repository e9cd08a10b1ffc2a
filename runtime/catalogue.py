"""Devices that can be named: whose operators answer for each, and how far they are off on another device.

The bundle of a named device is what was measured on it, and for the rest other devices' operators carried over. How
far those were off is in `transfers.csv`, per law and pair; `make datasets` makes it from devices whose measurements
ship: every regressor of one predicts the rows of the others.
"""

import csv
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache, partial
from hashlib import sha256
from math import log
from pathlib import Path
from types import MappingProxyType

from kernelcast.runtime.bundle.file import Bundle, UnreadFiles, bundle_of, open_shipped, read_bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.bundle.manifest import fingerprint_of
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.bundle.transfer import Transfer
from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.errors import UsageError, unknown
from kernelcast.runtime.hardware.attention_kernels import FUSED, measured_kernels
from kernelcast.runtime.hardware.devices import Device, device, device_named
from kernelcast.runtime.hardware.fabric import fabric_named
from kernelcast.runtime.hardware.limits import Rates
from kernelcast.runtime.operators import OPERATORS, Direction, Key
from kernelcast.runtime.shipped import BUNDLES, HARDWARE, POWER, SUMS, TRANSFERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A device by its short name (a row of devices.toml), with the kernels of some software, and its usual fabric's
    name. `bundle` holds the operators measured on it, if any; `donors` answer, in order, for what it
    lacks.
    """

    name: str
    device: str
    fabric: str
    bundle: Path | None = None
    donors: tuple[str, ...] = ()
    data: str = ""


@cache
def all_hardware() -> Mapping[str, Hardware]:
    """All hardware by name, measured hardware first."""
    table = tomllib.loads(HARDWARE.read_text(encoding="utf-8"))
    return MappingProxyType(
        {
            name: Hardware(
                name=name,
                device=row.get("device", name),
                fabric=row["fabric"],
                bundle=BUNDLES / row["bundle"] if "bundle" in row else None,
                donors=tuple(row.get("donors", ())),
                data=row.get("data", ""),
            )
            for name, row in table.items()
        }
    )


def measured_hardware() -> Mapping[str, Hardware]:
    """Hardware with measurements of its own, by name."""
    return {name: one for name, one in all_hardware().items() if one.bundle is not None}


def hardware_named(name: str) -> Hardware:
    """Look hardware up by any name of its device; UsageError where the device is unknown."""
    known = all_hardware()
    found = device_named(name)
    if name in known:
        return known[name]
    if found is None or found.name not in known:
        raise unknown("hardware", name, known)
    return known[found.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw:
    """Power in W: idle + `of_flops_w` · share of peak FLOP/s + `of_bandwidth_w` · share of bandwidth, up to a limit.
    Fitted to `rows` of `source`; `median_error` of a row's power, `energy_error` of all energy, fractions.
    """

    idle_w: float
    of_flops_w: float
    of_bandwidth_w: float
    limit_w: float
    rows: int
    median_error: float
    energy_error: float
    source: str

    def power_w(self, flops_share: float, bandwidth_share: float) -> float:
        """Power at some shares of both peaks."""
        drawn_w = self.idle_w + self.of_flops_w * flops_share + self.of_bandwidth_w * bandwidth_share
        return min(self.limit_w, drawn_w)


@cache
def power_laws() -> Mapping[str, PowerLaw]:
    """By device; most devices have none."""
    return MappingProxyType(
        {name: PowerLaw(**row) for name, row in tomllib.loads(POWER.read_text(encoding="utf-8")).items()}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferError:
    """Errors of one operator's times carried from `origin` to `target`, over `rows` of `source`, answered `by` a
    regressor or, if empty, the operator's own. `median_log` of log(predicted / measured), `median_error` of its
    absolute value; 90 % are within `log_half_width`.
    """

    key: Key
    by: str
    origin: str
    target: str
    source: str
    rows: int
    median_log: float
    median_error: float
    log_half_width: float

    @property
    def is_within_architecture(self) -> bool:
        """Whether both devices run the same kernels."""
        return device(self.origin).architecture == device(self.target).architecture


@cache
def transfer_errors() -> tuple[TransferError, ...]:
    """All measured hardware."""
    with TRANSFERS.open(encoding="utf-8", newline="") as file:
        return tuple(
            TransferError(
                key=(row["operator"], Direction(row["direction"])),
                **{name: row[name] for name in ("by", "origin", "target", "source")},
                rows=int(row["rows"]),
                median_log=float(row["median_log"]),
                median_error=float(row["median_error"]),
                log_half_width=float(row["log_half_width"]),
            )
            for row in csv.DictReader(file)
        )


def transfer_log_half_width(key: Key, origin: str, target: str) -> float:
    """Half-width of log(time) that holds 90 % of an operator's times carried between devices: of the pair where
    measured, else the operator's widest, else the median of its class. One chip with other memory is off by at most the
    ratio of the memories' rates.
    """
    known = transfer_errors()
    own = [one for one in known if one.key == key and not one.by and one.origin != one.target]
    pair = [one.log_half_width for one in own if (one.origin, one.target) == (origin, target)]
    if pair:
        return max(pair)
    start, end = device(origin), device(target)
    if start.architecture == end.architecture:
        own = [one for one in own if one.is_within_architecture] or own
    operator_class = OPERATORS[key[0]].operator_class
    alike = [one for one in known if OPERATORS[one.key[0]].operator_class is operator_class]
    found = (
        max(one.log_half_width for one in own)
        if own
        else _upper_median(one.log_half_width for one in alike or known)
    )
    if start.is_chip_of(end):
        return min(found, abs(log(start.memory_bytes_per_s / end.memory_bytes_per_s)))
    return found


def _upper_median(values: Iterable[float]) -> float:
    found = sorted(values)
    return found[len(found) // 2]


SCHEME = "hardware:"
"""What a bundle's path begins with that is not a file, but named hardware."""
_NAME = re.compile(r"[\w .+-]+")


def shipped_names(bundle: Bundle) -> tuple[str, ...]:
    """The name of hardware that ships, () of a bundle's file."""
    path = str(bundle.path)
    return (path.removeprefix(SCHEME),) if path.startswith(SCHEME) else ()


def source_meant(given: str | os.PathLike[str]) -> str:
    """What `load_bundle` takes: a path, or a text that may be the bare name of hardware.

    >>> source_meant("h100-sxm"), source_meant("here.kcast")
    ('hardware:h100-sxm', 'here.kcast')
    """
    text = os.fspath(given)
    is_name = isinstance(given, str) and _NAME.fullmatch(text) and not text.endswith(".kcast")
    return SCHEME + text if is_name and not os.path.exists(text) else text


def load_bundle(source: str | Path) -> Bundle:
    """The bundle in a file, or of named hardware (`hardware:h100-sxm`). UsageError where the hardware is unknown;
    DataError where the file is missing, damaged, or of another version.
    """
    text = str(source)
    return hardware_bundle(text.removeprefix(SCHEME)) if text.startswith(SCHEME) else read_bundle(source)


@cache
def hardware_bundle(name: str) -> Bundle:
    """Operators of a device, each from the first that measured it: the device itself, then its donors in order.
    UsageError where the device is not among those that can be named.
    """
    row = hardware_named(name)
    target = device(row.device)
    own = None if row.bundle is None else _shipped(row.bundle)
    entries: list[RegressorEntry] = (
        [] if own is None else [_stated(entry, row) for entry in own.manifest.regressors]
    )
    origins = {entry.file: own for entry in entries} if own is not None else {}
    read = [] if own is None else [own]
    for donor in map(hardware_named, row.donors):
        bundle = _shipped(_file(donor))
        read.append(bundle)
        known = {entry.operator for entry in entries}
        for entry in bundle.manifest.regressors:
            if entry.operator not in known and not OPERATORS[entry.operator].is_collective:
                entries.append(carried_to(_stated(entry, donor), device(donor.device), target))
                origins[entry.file] = bundle
    base = read[0].manifest
    manifest = replace(
        base,
        dtype=base.dtype if base.dtype in target.flops_per_s else "float16",
        compute=base.compute if own is not None else (_fingerprint(target),),
        software=tuple(dict.fromkeys(one for bundle in read for one in bundle.manifest.software)),
        fabric=(fingerprint_of(fabric_named(row.fabric)),),
        regressors=tuple(entries),
    )
    digests = "".join(bundle.digest for bundle in read)
    digest = sha256(f"{row.name} {digests}".encode()).hexdigest()
    files = {name: partial(origin.files.__getitem__, name) for name, origin in origins.items()}
    return bundle_of(Path(SCHEME + row.name), digest, manifest, UnreadFiles(files))


def carried_to(entry: RegressorEntry, origin: Device, target: Device) -> RegressorEntry:
    """A regressor of `origin` that answers for `target`: itself where both are one device."""
    if origin.name == target.name:
        return entry
    start, end = _rates(origin, entry.dtype), _rates(target, entry.dtype)
    width = transfer_log_half_width(entry.key, origin.name, target.name)
    if entry.transfer is not None:
        return replace(entry, transfer=entry.transfer.to(end, width))
    return replace(entry, transfer=Transfer(origin=start, target=end, log_half_width=width))


@cache
def _shipped(path: Path) -> Bundle:
    """A bundle that ships, opened once for all hardware that it answers for; a test verifies each."""
    digest, manifest_digest = _sums().get(path.name, ("", ""))
    return open_shipped(path, digest=digest, manifest_digest=manifest_digest)


@cache
def _sums() -> Mapping[str, tuple[str, str]]:
    """SHA-256 of the bundles that ship and of their manifests, by name."""
    files, manifests = dict[str, str](), dict[str, str]()
    for line in SUMS.read_text(encoding="utf-8").splitlines():
        *comment, digest, name = line.split()
        (manifests if comment else files)[name] = digest
    return {name: (digest, manifests[name]) for name, digest in files.items()}


def _stated(entry: RegressorEntry, row: Hardware) -> RegressorEntry:
    """The same entry with the source of its measurements, and of fused attention the kernel."""
    kernels = measured_kernels(row.name) if entry.operator == FUSED else None
    return replace(
        entry,
        data=entry.data or row.data,
        kernel=None if kernels is None else kernels.by_direction.get(entry.direction),
    )


def _rates(of: Device, dtype: str) -> Rates:
    """Peaks in `dtype`, or in the other 16-bit type."""
    found = Rates.of(of, dtype) or Rates.of(of, "float16")
    if found is None:
        raise UsageError(f"device {of.name}: computes neither in {dtype} nor in float16")
    return found


def _file(row: Hardware) -> Path:
    if row.bundle is None:
        raise UsageError(f"hardware {row.name}: has no measurements, expected a donor that has")
    return row.bundle


def _fingerprint(of: Device) -> ComputeFingerprint:
    kind = "rocm" if of.title.startswith("AMD") else "cuda"
    return ComputeFingerprint(
        kind=kind, device_name=of.title, memory_gib=of.memory_bytes >> 30, power_limit_w=round(of.power_w)
    )
