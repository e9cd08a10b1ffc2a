"""Published peaks of devices, `shipped/devices.toml`, with the source of every row; element types and load."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any

from kernelcast.runtime.dataclass import dataclass, field
from kernelcast.runtime.errors import unknown
from kernelcast.runtime.shipped import DEVICES

_MAKERS = re.compile(r"^(nvidia|amd|tesla|instinct)+")
_TF32 = "tf32"
# Element types of one rate: both forms of 8-bit floats.
_RATE_OF = {"float8_e4m3fn": "float8", "float8_e5m2": "float8", "float4_e2m1fn_x2": "nvfp4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What connects a device with others of its node: `bytes_per_s` in each direction."""

    kind: str
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Peaks of one device as `source` published them: `flops_per_s` by element type, dense; `links` inside a node, the
    fastest first; `cache_bytes` of the last level. Devices of one `architecture` run the same kernels.
    """

    name: str
    title: str
    architecture: str
    memory_bytes: int
    memory_bytes_per_s: float
    cache_bytes: int
    power_w: float
    source: str
    links: tuple[Link, ...] = ()
    flops_per_s: Mapping[str, float] = field(default_factory=dict, repr=False)

    def peak_flops_per_s(self, dtype: str) -> float | None:
        """Rate that utilisation refers to; None where the device does not compute in `dtype`."""
        return self.flops_per_s.get(_RATE_OF.get(dtype, dtype))

    def most_flops_per_s(self, dtype: str) -> float | None:
        """Rate that nothing exceeds: frameworks may compute float32 products in TF32."""
        own = self.peak_flops_per_s(dtype)
        if dtype != "float32":
            return own
        return max(own or 0.0, self.flops_per_s.get(_TF32, 0.0)) or None

    def is_chip_of(self, other: "Device") -> bool:
        """Whether both are one chip at one power limit, perhaps with other memory and more of its cache."""
        names = ("architecture", "flops_per_s", "power_w")
        return all(getattr(self, name) == getattr(other, name) for name in names)


@cache
def devices() -> Mapping[str, Device]:
    """Every device of the table by its short name, such as `h100-sxm`."""
    return MappingProxyType({name: _device(name, row) for name, row in _table().items()})


def device_named(name: str) -> Device | None:
    """The table's device that a driver, a file or a user calls `name`, however it is spaced and spelled; else None."""
    return _by_name().get(_plain(name))


def device(name: str) -> Device:
    """Look a device up by any of its names; UsageError where the table does not have it."""
    found = device_named(name)
    if found is None:
        raise unknown("device", name, devices())
    return found


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(DEVICES.read_text())


@cache
def _by_name() -> Mapping[str, Device]:
    return {
        _plain(name): devices()[short]
        for short, row in _table().items()
        for name in (short, row["title"], *row["names"])
    }


@lru_cache(maxsize=1 << 8)
def _plain(name: str) -> str:
    return _MAKERS.sub("", re.sub(r"[^a-z0-9]", "", name.lower()))


def _device(name: str, row: Mapping[str, Any]) -> Device:
    # The table ships with the package; a test reads every row.
    links = (Link(kind=one["kind"], bytes_per_s=one["gb_per_s"] * 1e9) for one in row["links"])
    return Device(
        name=name,
        title=row["title"],
        architecture=row["architecture"],
        memory_bytes=int(row["memory_gb"] * 2**30),
        memory_bytes_per_s=row["memory_gb_per_s"] * 1e9,
        cache_bytes=int(row["cache_mib"] * 2**20),
        power_w=float(row["power_w"]),
        source=row["source"],
        links=tuple(links),
        flops_per_s=MappingProxyType({dtype: rate * 1e12 for dtype, rate in row["flops"].items()}),
    )


ELEMENT_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float4_e2m1fn_x2": 1,
}


class Load(StrEnum):
    """Load around a measurement. BURST: some repetitions on an idle device, as operators are usually measured;
    NOT_STATED counts as that. SUSTAINED: the device has been busy for seconds (of a CPU: all its cores).
    """

    NOT_STATED = ""
    BURST = "burst"
    SUSTAINED = "sustained"

    @property
    def is_sustained(self) -> bool:
        """Whether sustained load is stated; everything else counts as a burst."""
        return self is Load.SUSTAINED

    @property
    def in_words(self) -> str:
        """Its name, or `not stated`."""
        return self.value or "not stated"


def loads_in_words(loads: Iterable[Load]) -> str:
    """Counts per load, such as `12 sustained, 30 burst, 1 not stated`; `none` without any."""
    counts = Counter(loads)
    order = (Load.SUSTAINED, Load.BURST, Load.NOT_STATED)
    return ", ".join(f"{counts[one]} {one.in_words}" for one in order if counts[one]) or "none"
