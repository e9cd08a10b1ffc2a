"""What connects devices: links inside a node, network cards between nodes, and which part of their rates is reached.

Descriptions are TOML, read strictly and written in full. One needs no measurement: rates are published figures;
missing latencies and efficiencies are taken from measured fabrics of the same kind (docs/fabrics.md, Defaults).
"""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import DataError, error_context, shown_path, unknown
from kernelcast.runtime.hardware.devices import Link, device_named
from kernelcast.runtime.record import WITH_DEFAULT, Check, Record, between, one_of, read_record
from kernelcast.runtime.shipped import FABRICS, LINKS
from kernelcast.runtime.small_file import read_toml, toml_document, toml_fields, toml_lines

SWITCH, MESH, BUS = "switch", "mesh", "bus"
INSIDE_KINDS: Mapping[str, str] = {"NVSwitch": SWITCH, "NVLink mesh": MESH, "xGMI mesh": MESH, "PCIe": BUS}
"""Kinds of links inside a node. Of a mesh, a group reaches only the links between its own devices."""
BETWEEN_KINDS = ("InfiniBand", "RoCE", "Slingshot", "EFA", "Ethernet")
TOPOLOGIES = ("rails", "switch")
"""Whether each card of a node reaches only the same card of other nodes, or every card."""
MOST_DEVICES = 1024
_LEAST_BYTES_PER_S, _MOST_BYTES_PER_S = 1e3, 1e15
_LEAST_EFFICIENCY = 1e-4
_LINE = "a text on one line of at most"
_Micros = Annotated[float, Check(lambda value: 0 <= value <= 1e6, "0 to 1e6 µs")]


def _rate(unit_bytes_per_s: float) -> Check:
    return Check(
        lambda value: _LEAST_BYTES_PER_S <= value * unit_bytes_per_s <= _MOST_BYTES_PER_S,
        "a rate from 1 kB/s to 1e15 bytes per second",
    )


def _fits(text: str, longest: int) -> bool:
    return text.isprintable() and len(text) <= longest


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside(Record):
    """Links inside a node: `gb_per_s` of a device in each direction over all links, `latency_us` of a step,
    `startup_us` of a large message. `efficiency` is the usual share of the rate, `efficiency_range` of measured
    fabrics. With `in_switch_reduction` the switch adds up an all-reduce, at `in_switch_efficiency`.
    """

    OPTIONAL: ClassVar[tuple[str, ...]] = ("in_switch_efficiency", "in_switch_range")

    kind: Annotated[str, one_of(INSIDE_KINDS)]
    gb_per_s: Annotated[float, _rate(1e9)]
    latency_us: _Micros
    startup_us: _Micros
    efficiency: float
    efficiency_range: tuple[float, float]
    in_switch_reduction: bool = False
    in_switch_efficiency: float | None = None
    in_switch_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        Record.__post_init__(self)
        _check_share("efficiency", self.efficiency, self.efficiency_range)
        reduces, share, ends = self.in_switch_reduction, self.in_switch_efficiency, self.in_switch_range
        is_given = share is not None or ends is not None
        self.require("in_switch_reduction", reduces or not is_given, "true, as its efficiency is given")
        is_switch = INSIDE_KINDS[self.kind] == SWITCH
        self.require("in_switch_reduction", is_switch or not reduces, "only with NVSwitch")
        if reduces:
            _check_share("in_switch_efficiency", share or 0.0, ends or (0.0, 0.0))

    @property
    def bytes_per_s(self) -> float:
        """Rate of a device in each direction."""
        return self.gb_per_s * 1e9

    def group_bytes_per_s(self, devices: int, of: int) -> float:
        """Rate of a device in a group of `devices` of the node's `of`."""
        if INSIDE_KINDS[self.kind] == MESH and of > 1:
            return self.bytes_per_s * max(1, min(devices, of) - 1) / (of - 1)
        return self.bytes_per_s

    def share_at(self, quality: Any) -> Any:
        """Share of the rate that is reached, the lowest at `quality` -1, the usual at 0, the highest at 1; a number or
        an array.
        """
        return _share_at(self.efficiency, self.efficiency_range, quality)

    def in_switch_share_at(self, quality: Any) -> Any:
        """The same for all-reduces in the switch, where it reduces."""
        return _share_at(self.in_switch_efficiency or 0.0, self.in_switch_range or (0.0, 0.0), quality)


@dataclass(frozen=True, slots=True, kw_only=True)
class Between(Record):
    """Network cards of a node: `cards` with `gbit_per_s` each in each direction; latency, start-up and efficiency as
    inside. With `in_network_reduction`, switches add up all-reduces (SHARP), which only lowers the bound.
    """

    kind: Annotated[str, one_of(BETWEEN_KINDS)]
    cards: Annotated[int, between(1, MOST_DEVICES)]
    gbit_per_s: Annotated[float, _rate(1e9 / 8)]
    latency_us: _Micros
    startup_us: _Micros
    efficiency: float
    efficiency_range: tuple[float, float]
    topology: Annotated[str, one_of(TOPOLOGIES)] = "rails"
    in_network_reduction: bool = False

    def __post_init__(self) -> None:
        Record.__post_init__(self)
        _check_share("efficiency", self.efficiency, self.efficiency_range)

    @property
    def bytes_per_s(self) -> float:
        """Rate of a card in each direction."""
        return self.gbit_per_s * 1e9 / 8

    def share_at(self, quality: Any) -> Any:
        """As inside."""
        return _share_at(self.efficiency, self.efficiency_range, quality)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric(Record):
    """A description of what connects the devices of a cluster, with its fields as they stand in TOML; `source` says
    where its numbers come from.

    `inside` is None with one device per node, `between` where nodes are not connected. DataError names a field
    whose value is not allowed.
    """

    OPTIONAL: ClassVar[tuple[str, ...]] = WITH_DEFAULT

    name: Annotated[str, Check(lambda text: bool(text.strip()) and _fits(text, 80), f"{_LINE} 80 characters")]
    devices_per_node: Annotated[int, between(1, MOST_DEVICES)]
    source: Annotated[str, Check(lambda text: _fits(text, 1000), f"{_LINE} 1000 characters")] = ""
    inside: Inside | None = None
    between: Between | None = None

    def __post_init__(self) -> None:
        Record.__post_init__(self)
        alone = self.devices_per_node == 1
        self.require("inside", alone or self.inside is not None, "a table, as nodes have several devices")
        connected = self.inside is not None or self.between is not None
        self.require("between", connected, "a table, as nodes have one device")

    @property
    def description(self) -> str:
        """One readable line."""
        parts = [f"{self.name}: {self.devices_per_node} device{'s' * (self.devices_per_node > 1)} per node"]
        if self.inside is not None and self.devices_per_node > 1:
            parts.append(f"{self.inside.kind} at {self.inside.gb_per_s:g} GB/s")
        if self.between is not None:
            rate = f"{self.between.gbit_per_s:g} Gbit/s"
            parts.append(f"{self.between.cards} × {rate} {self.between.kind} between nodes")
        return ", ".join(parts)


def _share_at(usual: float, ends: tuple[float, float], quality: Any) -> Any:
    low, high = ends
    return usual + (quality > 0) * quality * (high - usual) - (quality < 0) * quality * (low - usual)


def _check_share(field: str, usual: float, ends: tuple[float, float]) -> None:
    low, high = ends
    if not _LEAST_EFFICIENCY <= low <= usual <= high <= 1:
        found = f"{usual:g} ({low:g} to {high:g})"
        raise DataError(field=field, found=found, expected="0.0001 to 1, and within its range")


_MAX_FILE_BYTES = 1 << 16


class Efficiency(NamedTuple):
    """Share of a rate that large messages reach: the usual one, and the range over measured fabrics."""

    usual: float
    low: float
    high: float


class Defaults(NamedTuple):
    """Defaults of a kind of link for fields that a description leaves out; `source` says where they were measured."""

    latency_us: float
    startup_us: float
    efficiency: Efficiency
    source: str


@cache
def link_defaults() -> Mapping[str, Defaults]:
    """Defaults by kind of link."""
    table = tomllib.loads(LINKS.read_text(encoding="utf-8"))
    return {
        kind: Defaults(**{**row, "efficiency": Efficiency(*row["efficiency"])}) for kind, row in table.items()
    }


IN_SWITCH = Efficiency(usual=0.60, low=0.50, high=0.64)
"""Share of the links' rate at which NVSwitch adds up an all-reduce (H100, H200, B200 nodes of 8)."""


@cache
def shipped_fabrics() -> tuple[str, ...]:
    """Names of the descriptions that ship with the package."""
    return tuple(sorted(path.stem for path in FABRICS.glob("*.toml")))


def fabric_named(name: str, *, others: Sequence[str] = ()) -> Fabric:
    """A shipped description; `others` are names that may be meant too, for the UsageError about an unknown one."""
    if name not in shipped_fabrics():
        instead = "the path of a .toml file or a bundle works too"
        raise unknown("fabric", name, (*shipped_fabrics(), *others), instead=instead)
    return _shipped(name)


def described_fabric(wanted: str) -> Fabric:
    """A description that ships, by name, or a TOML file; errors as `fabric_named` and `read_fabric`."""
    return read_fabric(wanted) if "/" in wanted or wanted.endswith(".toml") else fabric_named(wanted)


@cache
def _shipped(name: str) -> Fabric:
    return read_fabric(FABRICS / f"{name}.toml")


def read_fabric(path: str | os.PathLike[str]) -> Fabric:
    """Read a description; DataError for no TOML, or a field that is missing, unknown or not allowed."""
    where = f"fabric file {shown_path(path)}"
    return fabric_from_values(read_toml(Path(path), where=where, most_bytes=_MAX_FILE_BYTES), where=where)


def fabric_from_lines(lines: Sequence[str], *, where: str) -> Fabric:
    """Inverse of `fabric_lines`; errors begin with `where`. Errors as `read_fabric`."""
    return fabric_from_values(toml_fields("\n".join(lines).encode(), where=where), where=where)


def fabric_from_values(values: Mapping[str, Any], *, where: str) -> Fabric:
    """A description from plain values, as in TOML; DataError where a field is missing, unknown or not allowed."""
    with error_context(where):
        tables = {name: value for name, value in values.items() if name in ("inside", "between")}
        filled = {name: _with_defaults(name, one) for name, one in tables.items() if isinstance(one, Mapping)}
        return read_record(Fabric, {**values, **filled})


def fabric_lines(fabric: Fabric) -> tuple[str, ...]:
    """The description as TOML, a field per line, with dotted names."""
    found: dict[str, Any] = {}
    for name, value in fabric.to_dict().items():
        parts = value if isinstance(value, dict) else {"": value}
        found |= {f"{name}.{field}" if field else name: one for field, one in parts.items()}
    return tuple(toml_lines(found))


def fabric_toml(fabric: Fabric) -> str:
    """The description as a TOML file, with every default written out."""
    return toml_document(fabric.to_dict())


def _with_defaults(level: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The table `inside` or `between`, completed by the defaults of its kind."""
    # A wrong kind is refused when all fields are read.
    known = link_defaults().get(str(values.get("kind")), link_defaults()["NVSwitch"])
    found: dict[str, Any] = {
        "latency_us": known.latency_us,
        "startup_us": known.startup_us,
        **_shares(values, "efficiency", "efficiency_range", known.efficiency),
    }
    if level == "between":
        found |= {"topology": "rails", "in_network_reduction": False}
    else:
        found["in_switch_reduction"] = False
        if values.get("in_switch_reduction") is True:
            found |= _shares(values, "in_switch_efficiency", "in_switch_range", IN_SWITCH)
    return found | dict(values)


def _shares(values: Mapping[str, Any], name: str, range_name: str, usual: Efficiency) -> dict[str, Any]:
    """An efficiency and its range: without a range, the default's, moved where the share lies outside of it."""
    share = values.get(name, usual.usual)
    if type(share) not in (int, float):
        return {}
    return {name: share, range_name: [min(usual.low, share), max(usual.high, share)]}


_NVLINK_VERSION = re.compile(r"NVLink ([0-9]+)$")
_FIRST_THAT_ADDS_UP = 4
"""NVSwitches add up all-reduces from NVLink 4 on (NVLink SHARP; Hopper tuning guide)."""


def adds_up(link: Link) -> bool:
    """Whether the switches of a node with such links add up all-reduces themselves."""
    version = _NVLINK_VERSION.match(link.kind)
    return version is not None and int(version[1]) >= _FIRST_THAT_ADDS_UP


@cache
def node_of(device_name: str, devices: int) -> Fabric | None:
    """A node at the full rate of a device's fastest links, as behind a switch: a bound; None where none are known."""
    found = device_named(device_name)
    if found is None or not found.links or devices < 2:
        return None
    link, share, ends = found.links[0], 1.0, (1.0, 1.0)
    reduces = adds_up(link)
    inside = Inside(
        kind="NVSwitch",
        gb_per_s=link.bytes_per_s / 1e9,
        latency_us=0.0,
        startup_us=0.0,
        efficiency=share,
        efficiency_range=ends,
        in_switch_reduction=reduces,
        in_switch_efficiency=share if reduces else None,
        in_switch_range=ends if reduces else None,
    )
    return Fabric(name=f"links of {found.title}", devices_per_node=devices, inside=inside)


def host_link(device_name: str) -> Link | None:
    """The fastest published link of a device to its host, PCIe or NVLink-C2C, in each direction; None without one.

    Copies reach less, and devices may share the host's memory.
    """
    found = device_named(device_name)
    links = found.links if found else ()
    to_host = (link for link in links if link.kind.startswith("PCIe") or "C2C" in link.kind)
    return max(to_host, key=lambda link: link.bytes_per_s, default=None)
