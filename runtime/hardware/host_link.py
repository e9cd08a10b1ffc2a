"""The link between a device and its host's memory."""

from kernelcast.runtime.hardware.devices import Link, device_named


def host_link(device_name: str) -> Link | None:
    """The fastest link of a device to its host that the device table has: PCIe, or NVLink-C2C; None without one.

    Its rate is the published one in each direction. Copies reach less, and devices may share the host's memory.
    """
    found = device_named(device_name)
    links = (
        [link for link in found.links if link.kind.startswith("PCIe") or "C2C" in link.kind] if found else []
    )
    return max(links, key=lambda link: link.bytes_per_s, default=None)
