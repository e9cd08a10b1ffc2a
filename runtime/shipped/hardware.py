"""Hardware that can be named: bundles that ship, each with the fabric that answers are given for."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.shipped import BUNDLES, HARDWARE


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedHardware:
    """A device by its short name (devices.toml), the bundle of its operators, and its usual fabric's name.

    `data` says whose measurements they are, of what and when.
    """

    name: str
    bundle: Path
    fabric: str
    data: str


@cache
def shipped_hardware() -> Mapping[str, ShippedHardware]:
    """All of it, by name."""
    table = tomllib.loads(HARDWARE.read_text(encoding="utf-8"))
    return MappingProxyType(
        {
            name: ShippedHardware(
                name=name, bundle=BUNDLES / row["bundle"], fabric=row["fabric"], data=row["data"]
            )
            for name, row in table.items()
        }
    )


def hardware_named(name: str) -> ShippedHardware:
    """Look hardware up by its name.

    Raises:
        UsageError: nothing ships for it.
    """
    known = shipped_hardware()
    if name not in known:
        raise UsageError(f"hardware is {name!r:.80}, expected one that ships: {', '.join(known)}")
    return known[name]
