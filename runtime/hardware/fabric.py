"""What connects devices: links inside a node, network cards between nodes, and which part of their rates is reached.

A description needs no measurement. Rates are published figures; latencies and efficiencies that it does not give are
those of measured fabrics of the same kind (docs/fabrics.md, Defaults).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.record import Record

SWITCH, MESH, BUS = "switch", "mesh", "bus"
INSIDE_KINDS: Mapping[str, str] = {"NVSwitch": SWITCH, "NVLink mesh": MESH, "xGMI mesh": MESH, "PCIe": BUS}
"""Kinds of links inside a node. Of a mesh, a group reaches only the links between its own devices."""
BETWEEN_KINDS = ("InfiniBand", "RoCE", "Slingshot", "EFA", "Ethernet")
TOPOLOGIES = ("rails", "switch")
"""Whether each card of a node reaches only the same card of other nodes, or every card."""
MOST_DEVICES = 1024
_LEAST_BYTES_PER_S, _MOST_BYTES_PER_S = 1e3, 1e15
_LEAST_EFFICIENCY = 1e-4
_LONGEST_NAME, _LONGEST_SOURCE = 80, 1000
_MOST_US = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside(Record):
    """Links inside a node: `gb_per_s` of a device in each direction, over all its links together.

    `latency_us` of one step of an algorithm; `startup_us` that a large message needs to reach its rate. `efficiency` is
    the share of the rate that large messages usually reach, `efficiency_range` the lowest and highest of measured
    fabrics. With `in_switch_reduction` the switch itself adds up an all-reduce, at `in_switch_efficiency` of the rate.
    """

    OPTIONAL: ClassVar[tuple[str, ...]] = ("in_switch_efficiency", "in_switch_range")

    kind: str
    gb_per_s: float
    latency_us: float
    startup_us: float
    efficiency: float
    efficiency_range: tuple[float, float]
    in_switch_reduction: bool = False
    in_switch_efficiency: float | None = None
    in_switch_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        check_kind("inside", self.kind)
        _check_rate("inside.gb_per_s", self.gb_per_s, self.bytes_per_s)
        _check_level("inside", self)
        reduces, share, ends = self.in_switch_reduction, self.in_switch_efficiency, self.in_switch_range
        is_given = share is not None or ends is not None
        _check(
            reduces or not is_given,
            "inside.in_switch_reduction",
            reduces,
            "true, as its efficiency is given",
        )
        is_switch = INSIDE_KINDS[self.kind] == SWITCH
        _check(is_switch or not reduces, "inside.in_switch_reduction", True, "only with NVSwitch")
        if reduces:
            _check_share("inside.in_switch_efficiency", share or 0.0, ends or (0.0, 0.0))

    @property
    def bytes_per_s(self) -> float:
        """Rate of a device in each direction."""
        return self.gb_per_s * 1e9

    def group_bytes_per_s(self, devices: int, of: int) -> float:
        """Rate of a device in a group of `devices` of the node's `of`."""
        if INSIDE_KINDS[self.kind] == MESH and of > 1:
            return self.bytes_per_s * max(1, min(devices, of) - 1) / (of - 1)
        return self.bytes_per_s

    def share_at(self, quality: float) -> float:
        """Share of the rate that is reached, the lowest at `quality` -1, the usual at 0, the highest at 1."""
        return _share_at(self.efficiency, self.efficiency_range, quality)

    def in_switch_share_at(self, quality: float) -> float:
        """The same for all-reduces in the switch, where it reduces."""
        return _share_at(self.in_switch_efficiency or 0.0, self.in_switch_range or (0.0, 0.0), quality)


@dataclass(frozen=True, slots=True, kw_only=True)
class Between(Record):
    """Network cards of a node: `cards` with `gbit_per_s` each in each direction.

    Latency, start-up and efficiency as inside. With `in_network_reduction`, switches add up all-reduces (SHARP); it
    only lowers the bound that nothing can be faster than.
    """

    kind: str
    cards: int
    gbit_per_s: float
    latency_us: float
    startup_us: float
    efficiency: float
    efficiency_range: tuple[float, float]
    topology: str = "rails"
    in_network_reduction: bool = False

    def __post_init__(self) -> None:
        check_kind("between", self.kind)
        _check(1 <= self.cards <= MOST_DEVICES, "between.cards", self.cards, f"1 to {MOST_DEVICES}")
        _check(self.topology in TOPOLOGIES, "between.topology", self.topology, " or ".join(TOPOLOGIES))
        _check_rate("between.gbit_per_s", self.gbit_per_s, self.bytes_per_s)
        _check_level("between", self)

    @property
    def bytes_per_s(self) -> float:
        """Rate of a card in each direction."""
        return self.gbit_per_s * 1e9 / 8

    def share_at(self, quality: float) -> float:
        """As inside."""
        return _share_at(self.efficiency, self.efficiency_range, quality)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric(Record):
    """A description of what connects the devices of a cluster, with its fields as they stand in TOML; `source` says
    where its numbers come from.

    `inside` is None with one device per node, `between` where nodes are not connected.

    Raises:
        DataError: a value is outside what is allowed; names the field.
    """

    OPTIONAL: ClassVar[tuple[str, ...]] = ("source", "inside", "between")

    name: str
    devices_per_node: int
    source: str = ""
    inside: Inside | None = None
    between: Between | None = None

    def __post_init__(self) -> None:
        for field, text, longest in (
            ("name", self.name, _LONGEST_NAME),
            ("source", self.source, _LONGEST_SOURCE),
        ):
            holds = text.isprintable() and len(text) <= longest and (bool(text.strip()) or field == "source")
            _check(holds, field, text, f"a text on one line of at most {longest} characters")
        devices = self.devices_per_node
        _check(1 <= devices <= MOST_DEVICES, "devices_per_node", devices, f"1 to {MOST_DEVICES}")
        _check(
            devices == 1 or self.inside is not None, "inside", None, "a table, as nodes have several devices"
        )
        connected = self.inside is not None or self.between is not None
        _check(connected, "between", None, "a table, as nodes have one device")

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


def check_kind(where: str, kind: object) -> None:
    """Check the kind of links `inside` nodes or `between` them.

    Raises:
        DataError: there is none of this name.
    """
    kinds = tuple(INSIDE_KINDS) if where == "inside" else BETWEEN_KINDS
    _check(kind in kinds, f"{where}.kind", kind, f"one of {', '.join(kinds)}")


def _share_at(usual: float, ends: tuple[float, float], quality: float) -> float:
    return usual + abs(quality) * (ends[quality > 0] - usual)


def _check_rate(field: str, rate: float, bytes_per_s: float) -> None:
    holds = _LEAST_BYTES_PER_S <= bytes_per_s <= _MOST_BYTES_PER_S
    _check(holds, field, rate, "a rate from 1 kB/s to 1e15 bytes per second")


def _check_level(where: str, level: Inside | Between) -> None:
    for name, value in (("latency_us", level.latency_us), ("startup_us", level.startup_us)):
        _check(0 <= value <= _MOST_US and math.isfinite(value), f"{where}.{name}", value, "0 to 1e6 µs")
    _check_share(f"{where}.efficiency", level.efficiency, level.efficiency_range)


def _check_share(field: str, usual: float, ends: tuple[float, float]) -> None:
    low, high = ends
    holds = _LEAST_EFFICIENCY <= low <= usual <= high <= 1
    found = f"{usual:g} ({low:g} to {high:g})"
    _check(holds, field, found, "0.0001 to 1, and within its range")


def _check(holds: bool, field: str, found: object, expected: str) -> None:
    if not holds:
        raise DataError(f"{field} is {found!r:.80}, expected {expected}")
