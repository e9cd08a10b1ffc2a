"""Fabrics as TOML: read strictly, written in full; shipped ones by name, and defaults for each kind of link."""

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kernelcast.runtime.errors import error_context, shown_path
from kernelcast.runtime.hardware.fabric import Fabric
from kernelcast.runtime.record import read_record
from kernelcast.runtime.shipped import FABRICS
from kernelcast.runtime.spelling import unknown
from kernelcast.runtime.toml_text import read_toml, toml_document, toml_fields, toml_lines

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


# Rounded from what the tables say that docs/fabrics.md lists; `kernelcast validate fabrics` does without the table that
# it compares with.
_NVLINK = "all-reduce, all-gather and reduce-scatter in nodes of A100, H100, H200 and B200"
_RDMA = "H100 and GH200 nodes on 400 Gbit/s InfiniBand"
DEFAULTS: Mapping[str, Defaults] = {
    "NVSwitch": Defaults(1.2, 40, Efficiency(0.72, 0.62, 0.80), _NVLINK),
    "NVLink mesh": Defaults(1.2, 40, Efficiency(0.74, 0.62, 0.80), "A100 nodes of 4 on Perlmutter"),
    "xGMI mesh": Defaults(
        1.5, 40, Efficiency(0.70, 0.50, 0.85), "not measured: as NVLink, with a wider range"
    ),
    "PCIe": Defaults(5, 15, Efficiency(0.60, 0.37, 0.70), "A100 PCIe nodes, published by SimuMax"),
    "InfiniBand": Defaults(2.5, 40, Efficiency(0.95, 0.85, 0.98), _RDMA),
    "RoCE": Defaults(3, 40, Efficiency(0.92, 0.75, 0.97), "not measured: as InfiniBand, with a wider range"),
    "Slingshot": Defaults(
        4, 40, Efficiency(0.85, 0.60, 0.95), "not measured: as InfiniBand, with a wider range"
    ),
    "EFA": Defaults(8, 60, Efficiency(0.80, 0.60, 0.92), "not measured: as InfiniBand, with a wider range"),
    "Ethernet": Defaults(
        25, 60, Efficiency(0.70, 0.30, 0.92), "not measured: as InfiniBand, with a wider range"
    ),
}
"""Latency and start-up in µs, efficiency with its range, by kind of link."""
IN_SWITCH = Efficiency(usual=0.60, low=0.50, high=0.64)
"""Share of the links' rate at which NVSwitch adds up an all-reduce (H100, H200, B200 nodes of 8)."""


@cache
def shipped_fabrics() -> tuple[str, ...]:
    """Names of the descriptions that ship with the package."""
    return tuple(sorted(path.stem for path in FABRICS.glob("*.toml")))


def fabric_named(name: str, *, others: Sequence[str] = ()) -> Fabric:
    """A shipped description; `others` are names that may be meant too, for the error.

    Raises:
        UsageError: the name is unknown.
    """
    if name not in shipped_fabrics():
        instead = "the path of a .toml file or a bundle works too"
        raise unknown("fabric", name, (*shipped_fabrics(), *others), instead=instead)
    return _shipped(name)


def described_fabric(wanted: str) -> Fabric:
    """A description that ships, by name, or a TOML file.

    Raises:
        UsageError, DataError: as `fabric_named` and `read_fabric`.
    """
    return read_fabric(wanted) if "/" in wanted or wanted.endswith(".toml") else fabric_named(wanted)


@cache
def _shipped(name: str) -> Fabric:
    return read_fabric(FABRICS / f"{name}.toml")


def read_fabric(path: str | os.PathLike[str]) -> Fabric:
    """Read a description.

    Raises:
        DataError: the file is missing, too large, not TOML, or a field is missing, unknown or outside what is
            allowed.
    """
    where = f"fabric file {shown_path(path)}"
    return fabric_from_values(read_toml(Path(path), where=where, most_bytes=_MAX_FILE_BYTES), where=where)


def fabric_from_lines(lines: Sequence[str], *, where: str) -> Fabric:
    """Inverse of `fabric_lines`; errors begin with `where`.

    Raises:
        DataError: as `read_fabric`.
    """
    return fabric_from_values(toml_fields("\n".join(lines).encode(), where=where), where=where)


def fabric_from_values(values: Mapping[str, Any], *, where: str) -> Fabric:
    """A description from plain values, as they stand in TOML.

    Raises:
        DataError: a field is missing, unknown or outside what is allowed.
    """
    with error_context(where):
        filled = {
            name: _with_defaults(name, value)
            if name in ("inside", "between") and isinstance(value, Mapping)
            else value
            for name, value in values.items()
        }
        return read_record(Fabric, filled)


def fabric_lines(fabric: Fabric) -> tuple[str, ...]:
    """The description as TOML, a field per line, with dotted names."""
    found: dict[str, Any] = {}
    for name, value in fabric.to_dict().items():
        found |= (
            {f"{name}.{field}": one for field, one in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
    return tuple(toml_lines(found))


def fabric_toml(fabric: Fabric) -> str:
    """The description as a TOML file, with every default written out."""
    return toml_document(fabric.to_dict())


def _with_defaults(level: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The table `inside` or `between`, completed by the defaults of its kind."""
    # A wrong kind is refused when all fields are read.
    known = DEFAULTS.get(str(values.get("kind")), DEFAULTS["NVSwitch"])
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
