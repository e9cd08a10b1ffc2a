"""Which fabric a question is about: a description, or a bundle that holds measured collectives; what an answer says."""

import os
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

from kernelcast.runtime.bundle.file import Bundle, read_content, verified_bundle
from kernelcast.runtime.dataclass import dataclass, field
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.hardware.fabric import Fabric, fabric_named, read_fabric
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.shipped import FABRICS

_BUNDLE = ".kcast"


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricBundle:
    """A bundle whose collectives answer; equal by what it holds, and small enough to be sent to other machines."""

    name: str
    digest: str
    content: bytes = field(compare=False, repr=False)

    @property
    def bundle(self) -> Bundle:
        return _bundle(self)


FabricChoice: TypeAlias = Fabric | FabricBundle


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricUse:
    """The fabric that answered an estimate's collectives: `kind` is "described", with the `source` of its numbers, or
    "measured", with the `digest` of its bundle.
    """

    name: str
    kind: str
    description: str
    digest: str = ""
    source: str = ""


def find_fabric(wanted: str | os.PathLike[str]) -> FabricChoice:
    """What ships by name, a TOML file, or a bundle (`.kcast`) with measured collectives. UsageError for an unknown
    name; DataError for a file that is missing or damaged, or a bundle without collectives.
    """
    text = os.fspath(wanted)
    if text in measured_fabric_names():
        return _measured(text, FABRICS / f"{text}{_BUNDLE}")
    if text.endswith(_BUNDLE):
        return _measured(text, Path(text))
    if "/" in text or text.endswith(".toml"):
        return read_fabric(text)
    return fabric_named(text, others=measured_fabric_names())


def measured_fabric_names() -> tuple[str, ...]:
    """Fabrics that ship with collectives measured over them."""
    return tuple(sorted(path.stem for path in FABRICS.glob(f"*{_BUNDLE}")))


def _measured(name: str, path: Path) -> FabricBundle:
    content = read_content(path)
    found = FabricBundle(name=name, digest=sha256(content).hexdigest(), content=content)
    if not any(OPERATORS[operator].is_collective for operator, _ in found.bundle.entries):
        raise DataError(f"fabric {name}: the bundle holds no collectives, expected one that does")
    return found


@lru_cache(maxsize=8)
def _bundle(found: FabricBundle) -> Bundle:
    return verified_bundle(Path(found.name), found.content)
