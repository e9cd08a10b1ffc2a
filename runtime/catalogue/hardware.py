"""Hardware that can be named: whose operators ship, who answers for the rest, and the fabric of answers."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.hardware.devices import device_named
from kernelcast.runtime.shipped import BUNDLES, HARDWARE, POWER
from kernelcast.runtime.spelling import unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A device by its short name, or a device with the kernels of some software; and its usual fabric's name.

    `device` is the row of devices.toml.

    `bundle` holds the operators that were measured on it, None where none were; `data` says whose measurements they
    are, of what and when. `donors` are hardware whose operators answer for what it lacks, the first that has one.
    """

    name: str
    device: str
    fabric: str
    bundle: Path | None = None
    donors: tuple[str, ...] = ()
    data: str = ""


@cache
def all_hardware() -> Mapping[str, Hardware]:
    """All that can be named, by name: measured hardware first."""
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
    """Look hardware up by any name of its device.

    Raises:
        UsageError: the device is unknown.
    """
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

    Fitted to `rows` matrix products; `median_error` of a row's power and `energy_error` of all rows' energy are
    fractions; `source` says who measured them.
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
