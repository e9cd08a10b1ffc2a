"""What connects devices: links inside a node, network cards between nodes, and which part of their rates is reached.

A description needs no measurement. Rates are published figures; missing latencies and efficiencies are
taken from measured fabrics of the same kind (docs/fabrics.md, Defaults).
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.record import WITH_DEFAULT, Check, Record, between, one_of

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
    """Links inside a node: `gb_per_s` of a device in each direction, over all its links together.

    `latency_us` of one step of an algorithm; `startup_us` that a large message needs to reach its rate. `efficiency` is
    the share of the rate that large messages usually reach, `efficiency_range` the lowest and highest of measured
    fabrics. With `in_switch_reduction` the switch itself adds up an all-reduce, at `in_switch_efficiency` of the rate.
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


def _share_at(usual: float, ends: tuple[float, float], quality: float) -> float:
    return usual + abs(quality) * (ends[quality > 0] - usual)


def _check_share(field: str, usual: float, ends: tuple[float, float]) -> None:
    low, high = ends
    if not _LEAST_EFFICIENCY <= low <= usual <= high <= 1:
        found = f"{usual:g} ({low:g} to {high:g})"
        raise DataError(field=field, found=found, expected="0.0001 to 1, and within its range")
