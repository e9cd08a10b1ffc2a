"""What connects devices: links inside a node, network cards between nodes, and which part of their rates is reached.

A description needs no measurement. Rates are published figures; latencies and efficiencies that it does not give are
those of measured fabrics of the same kind (docs/fabrics.md, Defaults).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kernelcast.runtime.errors import DataError

SWITCH, MESH, BUS = "switch", "mesh", "bus"
INSIDE_KINDS: Mapping[str, str] = MappingProxyType(
    {"NVSwitch": SWITCH, "NVLink mesh": MESH, "xGMI mesh": MESH, "PCIe": BUS}
)
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
class Efficiency:
    """Share of a rate that large messages reach: the usual one, and the range over measured fabrics."""

    usual: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not _LEAST_EFFICIENCY <= self.low <= self.usual <= self.high <= 1:
            found = f"{self.usual:g} ({self.low:g} to {self.high:g})"
            raise DataError(f"efficiency is {found}, expected 0.0001 to 1, and within its range")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """Links inside a node: `bytes_per_s` of a device in each direction, over all its links together.

    `latency_us` of one step of an algorithm; `startup_us` that a large message needs to reach its rate.
    `in_switch`: the share of the rate at which the switch itself adds up an all-reduce; None where it cannot.
    """

    kind: str
    bytes_per_s: float
    latency_us: float
    startup_us: float
    efficiency: Efficiency
    in_switch: Efficiency | None = None

    def __post_init__(self) -> None:
        _check(self.kind in INSIDE_KINDS, "inside.kind", self.kind, f"one of {', '.join(INSIDE_KINDS)}")
        _check_level("inside", self.bytes_per_s, self.latency_us, self.startup_us)
        is_switch = INSIDE_KINDS[self.kind] == SWITCH
        _check(is_switch or self.in_switch is None, "inside.in_switch_reduction", True, "only with NVSwitch")

    def group_bytes_per_s(self, devices: int, of: int) -> float:
        """Rate of a device in a group of `devices` of the node's `of`."""
        if INSIDE_KINDS[self.kind] == MESH and of > 1:
            return self.bytes_per_s * max(1, min(devices, of) - 1) / (of - 1)
        return self.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """Network cards of a node: `cards` with `bytes_per_s` each in each direction.

    `latency_us` and `startup_us` as inside. With `in_network`, switches add up all-reduces (SHARP); it only lowers
    the bound that nothing can be faster than.
    """

    kind: str
    cards: int
    bytes_per_s: float
    latency_us: float
    startup_us: float
    efficiency: Efficiency
    topology: str = "rails"
    in_network: bool = False

    def __post_init__(self) -> None:
        _check(self.kind in BETWEEN_KINDS, "between.kind", self.kind, f"one of {', '.join(BETWEEN_KINDS)}")
        _check(1 <= self.cards <= MOST_DEVICES, "between.cards", self.cards, f"1 to {MOST_DEVICES}")
        _check(self.topology in TOPOLOGIES, "between.topology", self.topology, " or ".join(TOPOLOGIES))
        _check_level("between", self.bytes_per_s, self.latency_us, self.startup_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A description of what connects the devices of a cluster; `source` says where its numbers come from.

    `inside` is None with one device per node, `between` where nodes are not connected.

    Raises:
        DataError: a value is outside what is allowed; names the field.
    """

    name: str
    devices_per_node: int
    inside: Inside | None = None
    between: Between | None = None
    source: str = ""

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
            parts.append(f"{self.inside.kind} at {self.inside.bytes_per_s / 1e9:g} GB/s")
        if self.between is not None:
            rate = self.between.bytes_per_s * 8 / 1e9
            parts.append(f"{self.between.cards} × {rate:g} Gbit/s {self.between.kind} between nodes")
        return ", ".join(parts)


def _check_level(where: str, bytes_per_s: float, latency_us: float, startup_us: float) -> None:
    rate = "gb_per_s" if where == "inside" else "gbit_per_s"
    holds = _LEAST_BYTES_PER_S <= bytes_per_s <= _MOST_BYTES_PER_S
    _check(holds, f"{where}.{rate}", bytes_per_s, "a rate from 1 kB/s to 1e15 bytes per second")
    for name, value in (("latency_us", latency_us), ("startup_us", startup_us)):
        _check(0 <= value <= _MOST_US and math.isfinite(value), f"{where}.{name}", value, "0 to 1e6 µs")


def _check(holds: bool, field: str, found: object, expected: str) -> None:
    if not holds:
        raise DataError(f"{field} is {found!r:.80}, expected {expected}")
