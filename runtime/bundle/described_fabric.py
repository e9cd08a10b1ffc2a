"""Described fabrics as fingerprints: so they live in databases and bundles, and merge like any other fabric.

A fingerprint with the backend `described` holds the fields of a description (docs/fabrics.md), a line of TOML each:
`links` the name, the source and what is inside a node, `nics` what is between nodes.
"""

from collections.abc import Iterable

from kernelcast.runtime.bundle.fingerprint import DESCRIBED, FabricFingerprint
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
        fabric_from_lines((*one.links, *one.nics), where=f"{where}: described fabric")
        for one in fingerprints
        if one.backend == DESCRIBED
    )


def measured_fabrics(fingerprints: Iterable[FabricFingerprint]) -> tuple[FabricFingerprint, ...]:
    """Those that collectives were measured over."""
    return tuple(one for one in fingerprints if one.backend != DESCRIBED)
