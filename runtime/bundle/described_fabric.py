"""Described fabrics as fingerprints: so they live in databases and bundles, and merge like any other fabric.

A fingerprint with the backend `described` holds the fields of a description (docs/fabrics.md), a line of TOML each:
`links` the name, the source and what is inside a node, `nics` what is between nodes.
"""

from collections.abc import Iterable
from functools import lru_cache

from kernelcast.runtime.bundle.fingerprint import DESCRIBED, FabricFingerprint
from kernelcast.runtime.bundle.manifest import Manifest
from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.fabric import Fabric
from kernelcast.runtime.hardware.fabric_file import fabric_from_lines, fabric_lines

_BETWEEN = "between."


def fingerprint_of(fabric: Fabric) -> FabricFingerprint:
    """The fingerprint that holds a description."""
    lines = fabric_lines(fabric)
    return FabricFingerprint(
        backend=DESCRIBED,
        gpus_per_node=fabric.devices_per_node,
        links=tuple(line for line in lines if not line.startswith(_BETWEEN)),
        nics=tuple(line for line in lines if line.startswith(_BETWEEN)),
    )


def described_fabrics(fingerprints: Iterable[FabricFingerprint], *, where: str) -> tuple[Fabric, ...]:
    """The descriptions among fingerprints; errors begin with `where`.

    Raises:
        DataError: a description has a field that is missing, unknown or outside what is allowed.
    """
    return tuple(
        _fabric((*one.links, *one.nics), where=f"{where}: described fabric")
        for one in fingerprints
        if one.backend == DESCRIBED
    )


@lru_cache(maxsize=1 << 6)
def _fabric(lines: tuple[str, ...], *, where: str) -> Fabric:
    return fabric_from_lines(lines, where=where)


def with_description(manifest: Manifest, fabric: Fabric) -> Manifest:
    """The manifest of a bundle whose fabric `fabric` describes, instead of what described it before.

    Raises:
        UsageError: the measured nodes have another number of devices.
    """
    measured = measured_fabrics(manifest.fabric)
    sizes = sorted({one.gpus_per_node for one in measured})
    if sizes and fabric.devices_per_node not in sizes:
        known = ", ".join(map(str, sizes))
        raise UsageError(
            f"fabric {fabric.name} has nodes of {fabric.devices_per_node}, expected {known}, as the bundle was measured"
        )
    return replace(manifest, fabric=(*measured, fingerprint_of(fabric)))


def measured_fabrics(fingerprints: Iterable[FabricFingerprint]) -> tuple[FabricFingerprint, ...]:
    """Fabrics that collectives were measured over."""
    return tuple(one for one in fingerprints if one.backend != DESCRIBED)
