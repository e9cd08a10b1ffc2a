"""The links of a device: to its host, and to other devices as a fabric, a bound without a described fabric."""

import re
from functools import cache

from kernelcast.runtime.hardware.devices import Link, device_named
from kernelcast.runtime.hardware.fabric import Fabric, Inside

_FULL = 1.0, (1.0, 1.0)
_NVLINK = re.compile(r"NVLink ([0-9]+)$")
_FIRST_THAT_ADDS_UP = 4
"""NVSwitches add up all-reduces from NVLink 4 on (NVLink SHARP; Hopper tuning guide)."""


def adds_up(link: Link) -> bool:
    """Whether the switches of a node with such links add up all-reduces themselves."""
    version = _NVLINK.match(link.kind)
    return version is not None and int(version[1]) >= _FIRST_THAT_ADDS_UP


@cache
def node_of(device_name: str, devices: int) -> Fabric | None:
    """A node of `devices` at the full rate of the fastest links that the device table has; None where it has none.

    It is a bound, not a prediction: PCIe cards may have a bridge, and links between all pairs are taken as a switch.
    """
    found = device_named(device_name)
    if found is None or not found.links or devices < 2:
        return None
    link, (share, ends) = found.links[0], _FULL
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
    """The fastest link of a device to its host that the device table has: PCIe, or NVLink-C2C; None without one.

    Its rate is the published one in each direction. Copies reach less, and devices may share the host's memory.
    """
    found = device_named(device_name)
    links = (
        [link for link in found.links if link.kind.startswith("PCIe") or "C2C" in link.kind] if found else []
    )
    return max(links, key=lambda link: link.bytes_per_s, default=None)
