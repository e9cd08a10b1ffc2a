"""Fabrics as TOML: read strictly, written in full; shipped ones by name, and what a kind of link has by default."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kernelcast.runtime.errors import DataError, UsageError, one_line, shown, shown_path
from kernelcast.runtime.hardware.fabric import (
    BETWEEN_KINDS,
    INSIDE_KINDS,
    Between,
    Efficiency,
    Fabric,
    Inside,
)
from kernelcast.runtime.shipped import FABRICS
from kernelcast.runtime.small_file import read_small_file
from kernelcast.runtime.spelling import alternatives
from kernelcast.runtime.toml_text import parse_toml

_MAX_FILE_BYTES = 1 << 16
_LONGEST_TEXT = 4096
_FIELDS = ("name", "devices_per_node", "source", "inside", "between")
_LEVEL_FIELDS = ("kind", "latency_us", "startup_us", "efficiency", "efficiency_range")
_INSIDE_FIELDS = (
    *_LEVEL_FIELDS,
    "gb_per_s",
    "in_switch_reduction",
    "in_switch_efficiency",
    "in_switch_range",
)
_BETWEEN_FIELDS = (*_LEVEL_FIELDS, "cards", "gbit_per_s", "topology", "in_network_reduction")


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What links of a kind have where a description does not say it; `source` says where that was measured."""

    latency_us: float
    startup_us: float
    efficiency: Efficiency
    source: str


def _defaults(
    latency_us: float, startup_us: float, usual: float, low: float, high: float, source: str
) -> Defaults:
    efficiency = Efficiency(usual=usual, low=low, high=high)
    return Defaults(latency_us=latency_us, startup_us=startup_us, efficiency=efficiency, source=source)


# Rounded from what the tables say that docs/fabrics.md lists; `kernelcast validate fabrics` does without the table that
# it compares with.
_NVLINK = "all-reduce, all-gather and reduce-scatter in nodes of A100, H100, H200 and B200"
_RDMA = "H100 and GH200 nodes on 400 Gbit/s InfiniBand"
DEFAULTS: Mapping[str, Defaults] = MappingProxyType(
    {
        "NVSwitch": _defaults(1.2, 40, 0.72, 0.62, 0.80, _NVLINK),
        "NVLink mesh": _defaults(1.2, 40, 0.74, 0.62, 0.80, "A100 nodes of 4 on Perlmutter"),
        "xGMI mesh": _defaults(1.5, 40, 0.70, 0.50, 0.85, "not measured: as NVLink, with a wider range"),
        "PCIe": _defaults(5, 15, 0.60, 0.37, 0.70, "A100 PCIe nodes, published by SimuMax"),
        "InfiniBand": _defaults(2.5, 40, 0.95, 0.85, 0.98, _RDMA),
        "RoCE": _defaults(3, 40, 0.92, 0.75, 0.97, "not measured: as InfiniBand, with a wider range"),
        "Slingshot": _defaults(4, 40, 0.85, 0.60, 0.95, "not measured: as InfiniBand, with a wider range"),
        "EFA": _defaults(8, 60, 0.80, 0.60, 0.92, "not measured: as InfiniBand, with a wider range"),
        "Ethernet": _defaults(25, 60, 0.70, 0.30, 0.92, "not measured: as InfiniBand, with a wider range"),
    }
)
"""Latency and start-up in µs, efficiency with its range, by kind of link."""
IN_SWITCH = Efficiency(usual=0.60, low=0.50, high=0.64)
"""Share of the links' rate at which NVSwitch adds up an all-reduce (H100, H200, B200 nodes of 8)."""


@cache
def shipped_fabrics() -> tuple[str, ...]:
    """Names of the descriptions that ship with the package."""
    return tuple(sorted(path.stem for path in FABRICS.glob("*.toml")))


def fabric_named(name: str) -> Fabric:
    """A shipped description.

    Raises:
        UsageError: there is none of this name.
    """
    if name not in shipped_fabrics():
        raise UsageError(
            f"fabric {shown(name)} is unknown, {alternatives(name, shipped_fabrics())}; "
            "the path of a .toml file or a bundle works too"
        )
    return read_fabric(FABRICS / f"{name}.toml")


def read_fabric(path: str | os.PathLike[str]) -> Fabric:
    """Read a description.

    Raises:
        DataError: the file is missing, too large, not TOML, or a field is missing, unknown or outside what is
            allowed.
    """
    where = f"fabric file {shown_path(path)}"
    return _parsed(read_small_file(Path(path), where=where, most_bytes=_MAX_FILE_BYTES), where)


def fabric_from_lines(lines: Sequence[str], *, where: str) -> Fabric:
    """Inverse of `fabric_lines`; errors begin with `where`.

    Raises:
        DataError: as `read_fabric`.
    """
    return _parsed("\n".join(lines).encode(), where)


def fabric_from_values(values: Mapping[str, Any], *, where: str) -> Fabric:
    """A description from plain values, as they stand in TOML.

    Raises:
        DataError: a field is missing, unknown or outside what is allowed.
    """
    read = _Table(where, "", values, _FIELDS)
    try:
        return Fabric(
            name=read.text("name"),
            devices_per_node=read.whole("devices_per_node"),
            inside=_inside(read.table("inside", _INSIDE_FIELDS)),
            between=_between(read.table("between", _BETWEEN_FIELDS)),
            source=read.text("source") if "source" in values else "",
        )
    except DataError as error:
        message = str(error)
        raise DataError(message if message.startswith(where) else f"{where}: {message}") from None


def fabric_lines(fabric: Fabric) -> tuple[str, ...]:
    """The description as TOML, a field per line, with dotted names."""
    found = [f"name = {_toml(fabric.name)}", f"devices_per_node = {fabric.devices_per_node}"]
    if fabric.source:
        found.append(f"source = {_toml(fabric.source)}")
    for table, values in fabric_values(fabric).items():
        if isinstance(values, dict):
            found.extend(f"{table}.{name} = {_toml(value)}" for name, value in values.items())
    return tuple(found)


def fabric_toml(fabric: Fabric) -> str:
    """The description as a TOML file, with every default written out."""
    lines = []
    for name, value in fabric_values(fabric).items():
        if isinstance(value, dict):
            lines += ["", f"[{name}]", *(f"{field} = {_toml(one)}" for field, one in value.items())]
        else:
            lines.append(f"{name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def fabric_values(fabric: Fabric) -> dict[str, Any]:
    """Plain values, as they stand in TOML; inverse of `fabric_from_values`."""
    values: dict[str, Any] = {"name": fabric.name, "devices_per_node": fabric.devices_per_node}
    if fabric.source:
        values["source"] = fabric.source
    if (inside := fabric.inside) is not None:
        values["inside"] = {
            "kind": inside.kind,
            "gb_per_s": _plain(inside.bytes_per_s / 1e9),
            **_level(inside),
        }
        values["inside"]["in_switch_reduction"] = inside.in_switch is not None
        if inside.in_switch is not None:
            values["inside"]["in_switch_efficiency"] = inside.in_switch.usual
            values["inside"]["in_switch_range"] = [inside.in_switch.low, inside.in_switch.high]
    if (between := fabric.between) is not None:
        rate = {"cards": between.cards, "gbit_per_s": _plain(between.bytes_per_s * 8 / 1e9)}
        values["between"] = {"kind": between.kind, **rate, **_level(between)}
        values["between"] |= {"topology": between.topology, "in_network_reduction": between.in_network}
    return values


def _plain(rate: float) -> float:
    # Without the last bits that changing the unit adds.
    return float(f"{rate:.12g}")


def _level(level: Inside | Between) -> dict[str, Any]:
    return {
        "latency_us": level.latency_us,
        "startup_us": level.startup_us,
        "efficiency": level.efficiency.usual,
        "efficiency_range": [level.efficiency.low, level.efficiency.high],
    }


def _inside(read: "_Table | None") -> Inside | None:
    if read is None:
        return None
    kind = read.choice("kind", tuple(INSIDE_KINDS))
    known = DEFAULTS[kind]
    reduces = read.flag("in_switch_reduction", False)
    if not reduces and ("in_switch_efficiency" in read.values or "in_switch_range" in read.values):
        raise read.refused("in_switch_reduction", reduces, "true, as its efficiency is given")
    return Inside(
        kind=kind,
        bytes_per_s=read.number("gb_per_s") * 1e9,
        latency_us=read.number("latency_us", known.latency_us),
        startup_us=read.number("startup_us", known.startup_us),
        efficiency=read.efficiency("efficiency", "efficiency_range", known.efficiency),
        in_switch=read.efficiency("in_switch_efficiency", "in_switch_range", IN_SWITCH) if reduces else None,
    )


def _between(read: "_Table | None") -> Between | None:
    if read is None:
        return None
    kind = read.choice("kind", BETWEEN_KINDS)
    known = DEFAULTS[kind]
    return Between(
        kind=kind,
        cards=read.whole("cards"),
        bytes_per_s=read.number("gbit_per_s") * 1e9 / 8,
        latency_us=read.number("latency_us", known.latency_us),
        startup_us=read.number("startup_us", known.startup_us),
        efficiency=read.efficiency("efficiency", "efficiency_range", known.efficiency),
        topology=read.text("topology") if "topology" in read.values else "rails",
        in_network=read.flag("in_network_reduction", False),
    )


class _Table:
    """Typed access to a table of TOML with no other fields than `known`."""

    def __init__(self, where: str, prefix: str, values: object, known: Sequence[str]) -> None:
        if not isinstance(values, Mapping):
            raise DataError(f"{where}: {prefix.rstrip('.')} is {shown(values)}, expected a table")
        self.where, self.prefix, self.values = where, prefix, values
        for name in values:
            if name not in known:
                expected = ", ".join(known)
                raise DataError(f"{where}: field {shown(prefix + str(name))} is unknown, expected {expected}")

    def refused(self, name: str, found: object, expected: str) -> DataError:
        """The error about a field."""
        return DataError(f"{self.where}: {self.prefix}{name} is {shown(found)}, expected {expected}")

    def table(self, name: str, known: Sequence[str]) -> "_Table | None":
        """A table in it; None where it is not given."""
        return _Table(self.where, f"{name}.", self.values[name], known) if name in self.values else None

    def _required(self, name: str, expected: str) -> Any:
        if name not in self.values:
            raise DataError(f"{self.where}: {self.prefix}{name} is missing, expected {expected}")
        return self.values[name]

    def text(self, name: str) -> str:
        """A text."""
        value = self._required(name, "a text")
        if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
            raise self.refused(name, value, f"a text of at most {_LONGEST_TEXT:,} characters")
        return value

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        """One of `allowed`."""
        value = self._required(name, f"one of {', '.join(allowed)}")
        if not isinstance(value, str) or value not in allowed:
            raise self.refused(name, value, f"one of {', '.join(allowed)}")
        return value

    def whole(self, name: str) -> int:
        """A whole number."""
        value = self._required(name, "a whole number")
        if type(value) is not int:
            raise self.refused(name, value, "a whole number")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(name, default)
        if type(value) is not bool:
            raise self.refused(name, value, "true or false")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number."""
        value = self._required(name, "a number") if default is None else self.values.get(name, default)
        return self._number(name, value, "a number")

    def _number(self, name: str, value: object, expected: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refused(name, value, expected)
        try:
            return float(value)
        except OverflowError:
            raise self.refused(name, value, expected) from None

    def efficiency(self, name: str, range_name: str, default: Efficiency) -> Efficiency:
        """A share with its range: without a range, the default's, moved where the share lies outside of it."""
        usual = self.number(name, default.usual)
        low, high = min(default.low, usual), max(default.high, usual)
        if range_name in self.values:
            expected = "[lowest, highest]"
            found = self.values[range_name]
            if not isinstance(found, list) or len(found) != 2:
                raise self.refused(range_name, found, expected)
            low, high = (self._number(range_name, one, expected) for one in found)
        try:
            return Efficiency(usual=usual, low=low, high=high)
        except DataError:
            expected = "0.0001 to 1, and within its range"
            raise self.refused(name, f"{usual:g} ({low:g} to {high:g})", expected) from None


def _parsed(content: bytes, where: str) -> Fabric:
    try:
        values = parse_toml(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not TOML ({one_line(str(error))})") from error
    return fabric_from_values(values, where=where)


def _toml(value: object) -> str:
    # TOML's basic strings, numbers, lists and booleans are those of JSON.
    return json.dumps(value, ensure_ascii=False)
